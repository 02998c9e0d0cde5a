"""Checkpoints: the file of weights, and the training state that a run resumes from.

Each name is imported at its first use, because all of them require torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.checkpoint.file import WEIGHTS_PREFIX as WEIGHTS_PREFIX
    from gptmini.checkpoint.file import TrainingState as TrainingState
    from gptmini.checkpoint.file import config_of as config_of
    from gptmini.checkpoint.file import header as header
    from gptmini.checkpoint.file import read_checkpoint as read_checkpoint
    from gptmini.checkpoint.file import read_model as read_model
    from gptmini.checkpoint.file import step_of as step_of
    from gptmini.checkpoint.file import write_checkpoint as write_checkpoint
else:
    __getattr__ = lazy_names(__name__)
