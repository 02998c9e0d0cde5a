"""Sampling: rules as pure functions of logits, decoding over the key/value cache, text that streams."""

from gptmini.generation.decoding import Decoder, store_by_column, uniforms
from gptmini.generation.rules import Rules, choose
from gptmini.generation.text import (
    TextPiece,
    TextStream,
    generate,
    generate_stream,
    in_order,
    prompt_ids,
)

__all__ = [
    "Decoder",
    "Rules",
    "TextPiece",
    "TextStream",
    "choose",
    "generate",
    "generate_stream",
    "in_order",
    "prompt_ids",
    "store_by_column",
    "uniforms",
]
