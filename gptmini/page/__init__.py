"""The web page: text or chat, the probability of each token, likely alternatives, and attention.

gptmini serve shows the page, and gptmini export writes the page and a model into one file. Each name is imported at its
first use, because writing a model requires torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.page.assembling import server_page as server_page
    from gptmini.page.model_file import write_page as write_page
else:
    __getattr__ = lazy_names(__name__)
