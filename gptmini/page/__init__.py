"""The web page: text or chat, the probability of each token, likely alternatives, and attention.

gptmini serve shows the page, and gptmini export writes the page and a model into one file.
"""

from gptmini.page.assembling import content_security_policy, server_page

__all__ = [
    "content_security_policy",
    "server_page",
]
