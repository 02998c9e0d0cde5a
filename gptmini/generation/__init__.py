"""Sampling: rules as pure functions of logits, decoding with the key/value cache, and streamed text."""

from gptmini.generation.decoding import Decoder, Drawn, uniforms
from gptmini.generation.rules import Rules, choose
from gptmini.generation.text import (
    TextPiece,
    TextStream,
    checked_integer,
    checked_rules,
    generate,
    generate_stream,
    in_order,
    prompt_ids,
)
from gptmini.model.packed import pack

__all__ = [
    "Decoder",
    "Drawn",
    "Rules",
    "TextPiece",
    "TextStream",
    "checked_integer",
    "checked_rules",
    "choose",
    "generate",
    "generate_stream",
    "in_order",
    "pack",
    "prompt_ids",
    "uniforms",
]
