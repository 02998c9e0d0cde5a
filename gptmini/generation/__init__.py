"""Sampling: rules as pure functions of logits, decoding with the key/value cache, and streamed text."""

from gptmini.generation.decoding import Decoder as Decoder
from gptmini.generation.decoding import Drawn as Drawn
from gptmini.generation.decoding import uniforms as uniforms
from gptmini.generation.rules import Rules as Rules
from gptmini.generation.rules import choose as choose
from gptmini.generation.text import TextPiece as TextPiece
from gptmini.generation.text import TextStream as TextStream
from gptmini.generation.text import checked_integer as checked_integer
from gptmini.generation.text import checked_rules as checked_rules
from gptmini.generation.text import generate as generate
from gptmini.generation.text import generate_stream as generate_stream
from gptmini.generation.text import in_order as in_order
from gptmini.generation.text import prompt_ids as prompt_ids
from gptmini.model.packed import pack as pack
