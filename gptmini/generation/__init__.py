"""Sampling: rules as functions of logits, decoding with the key/value cache, streamed text, and conversations.

Each name is imported at its first use, because all of them require torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.generation.compiled import CompiledSession as CompiledSession
    from gptmini.generation.conversation import Conversation as Conversation
    from gptmini.generation.conversation import chat as chat
    from gptmini.generation.rules import Rules as Rules
    from gptmini.generation.sample import Request as Request
    from gptmini.generation.sample import TextPiece as TextPiece
    from gptmini.generation.sampling import generate as generate
    from gptmini.generation.sampling import generate_stream as generate_stream
    from gptmini.generation.sampling import in_order as in_order
    from gptmini.generation.sampling import prompt_ids as prompt_ids
    from gptmini.generation.session import DIVERGED as DIVERGED
    from gptmini.generation.session import Session as Session
    from gptmini.model import pack as pack
else:
    __getattr__ = lazy_names(__name__)
