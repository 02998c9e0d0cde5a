"""Evaluate a model on held-out text: loss, perplexity and bits per byte, with confidence intervals.

Each name is imported at its first use, because most of them require torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.evaluation.held_out import HeldOutText as HeldOutText
    from gptmini.evaluation.held_out import PreparedText as PreparedText
    from gptmini.evaluation.held_out import TextFiles as TextFiles
    from gptmini.evaluation.intervals import FEWEST_EQUAL_PARTS as FEWEST_EQUAL_PARTS
    from gptmini.evaluation.measurement import TrainedModel as TrainedModel
    from gptmini.evaluation.measurement import measure as measure
    from gptmini.evaluation.measurement import report_of as report_of
    from gptmini.evaluation.measurement import scores_per_document as scores_per_document
    from gptmini.evaluation.score import Evaluation as Evaluation
    from gptmini.evaluation.score import Tally as Tally
    from gptmini.evaluation.score import evaluate as evaluate
    from gptmini.evaluation.score import token_losses as token_losses
else:
    __getattr__ = lazy_names(__name__)
