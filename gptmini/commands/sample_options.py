"""The options of the commands that generate text: sample, chat and serve."""

import argparse

from gptmini import generation
from gptmini.settings import SAMPLE_TEMPERATURE

RUN = """
run RUN  run folder such as runs/latest, checkpoint file, or exported folder; runs/NAME means its latest run
"""
DEVICE = """
--device NAME=auto  auto, cpu, cuda or mps
--dtype auto|fp32|bf16|int8|fp64=auto  dtype of the weights; auto: bf16 if fast here, otherwise the checkpoint's dtype
"""
# gptmini.generation.Rules checks the ranges.
SAMPLING = rf"""
--temperature NUMBER={SAMPLE_TEMPERATURE}  divisor of the logits; 0 always takes the most probable token
--top-k INTEGER  draw only from this many most probable tokens; 0: from all (default: all)
--top-p NUMBER  draw only from the smallest set of tokens with this total probability (default: all)
--min-p NUMBER  draw only from tokens at least this many times as probable as the most probable token (default: all)
--repetition-penalty NUMBER=1.0  a value above 1 makes repetitions less probable
--stop TEXT...  end a sample before this text, such as '\n\n'; may be repeated
--ignore-end-of-text  continue after the end of a document or answer
"""


def request_of(options: argparse.Namespace) -> "generation.Request":
    """Return the options as a request without a prompt and a seed. This imports torch, which takes seconds."""
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return generation.Request(
        rules=generation.Rules(**{name: getattr(options, name) for name in names}),
        stop=options.stop,
        ignore_end_of_text=options.ignore_end_of_text,
    )
