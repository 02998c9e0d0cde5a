"""Sampling: rules as functions of logits, decoding with the key/value cache, streamed text, and conversations."""

from gptmini.generation.compiled import CompiledDecoder as CompiledDecoder
from gptmini.generation.conversation import Conversation as Conversation
from gptmini.generation.conversation import chat as chat
from gptmini.generation.conversation import room_for_answer as room_for_answer
from gptmini.generation.decoding import Decoder as Decoder
from gptmini.generation.decoding import Request as Request
from gptmini.generation.rules import Rules as Rules
from gptmini.generation.rules import choose as choose
from gptmini.generation.sampling import generate as generate
from gptmini.generation.sampling import generate_stream as generate_stream
from gptmini.generation.sampling import in_order as in_order
from gptmini.generation.sampling import prompt_ids as prompt_ids
from gptmini.generation.session import DIVERGED as DIVERGED
from gptmini.generation.session import SampleText as SampleText
from gptmini.generation.session import Session as Session
from gptmini.generation.session import TextPiece as TextPiece
from gptmini.model import pack as pack
