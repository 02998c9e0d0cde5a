"""A stream of pieces to stdout, as text or JSON, until the first Ctrl-C."""

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptmini.generation import TextPiece

# Seconds after the first Ctrl-C from which another one ends the program at once. One that comes sooner may belong to
# the same press of the keys.
IMPATIENT = 1.0

# What a terminal is shown for each control character but line break and tab. A model may write any of them, and a
# terminal obeys some: an escape sequence can set its title or its clipboard. These are Unicode's C0, DEL and C1.
SHOWN_ON_TERMINALS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


class Interruption:
    """Ends a stream of pieces at the first Ctrl-C, so that all that was generated is written.

    A Ctrl-C that comes a second or more after the first raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.came: float | None = None  # time of the first Ctrl-C, in seconds of time.monotonic

    def heed(self, pieces: Iterator["TextPiece"]) -> Iterator["TextPiece"]:
        """The pieces, up to the first Ctrl-C."""
        self.came = None
        before = signal.signal(signal.SIGINT, self._note)
        try:
            for piece in pieces:
                yield piece
                if self.came is not None:
                    return
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, signum: int, frame: object) -> None:
        """Handle SIGINT."""
        now = time.monotonic()
        if self.came is None:
            self.came = now
        elif now - self.came > IMPATIENT:
            raise KeyboardInterrupt


def show_text(pieces: Iterable["TextPiece"], prompts: list[str], num_samples: int) -> None:
    """Print each prompt with its continuation as the pieces come, below a title if there are several samples.

    A terminal gets control characters as escapes; files and pipes get the text as it is. The pieces of a sample follow
    each other, here and in show_jsonl.
    """
    shown_as = SHOWN_ON_TERMINALS if sys.stdout.isatty() else {}
    for number, of_sample in groupby(pieces, key=lambda piece: piece.sample):
        prompt, sample = divmod(number, num_samples)
        title = []
        if len(prompts) > 1:
            title.append(f"prompt {prompt + 1}")
        if num_samples > 1:
            title.append(f"sample {sample + 1}")
        if title:
            gap = "\n" if number > 0 else ""
            print(f"{gap}--- {', '.join(title)}")

        print(prompts[prompt].translate(shown_as), end="", flush=True)
        for piece in of_sample:
            print(piece.text.translate(shown_as), end="\n" if piece.finish else "", flush=True)


def show_jsonl(
    pieces: Iterable["TextPiece"], prompts: list[str], num_samples: int, *, logprobs: bool
) -> None:
    """Print a JSON object a line for each sample; its finish is null if an interruption cut the sample off."""
    for number, of_sample in groupby(pieces, key=lambda piece: piece.sample):
        prompt, sample = divmod(number, num_samples)
        drawn = list(of_sample)
        record: dict[str, Any] = {
            "prompt": prompts[prompt],
            "sample": sample,
            "text": "".join(piece.text for piece in drawn),
            "finish": drawn[-1].finish,
            "n_tokens": len(drawn),
        }
        if logprobs:
            record["tokens"] = [piece.token for piece in drawn]
            record["logprobs"] = [piece.log_probability for piece in drawn]
        print(json.dumps(record, ensure_ascii=False), flush=True)
