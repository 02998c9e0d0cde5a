"""A stream of pieces to stdout, as text or JSON, until the first Ctrl-C."""

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptmini.generation import Piece

# Seconds after the first Ctrl-C from which another one ends the program at once. One that comes sooner may belong to
# the same press of the keys.
IMPATIENT = 1.0

# What a terminal is shown for each control character but line break and tab. A model may write any of them, and a
# terminal obeys some: an escape sequence can set its title or its clipboard. These are Unicode's C0, DEL and C1.
SHOWN_ON_TERMINALS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
# JSON's escapes of DEL and C1, which json.dumps leaves as they are. A reader of JSON gets the same text.
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class Interruption:
    """Ends a stream of pieces at the first Ctrl-C, so that all that was generated is written.

    A Ctrl-C that comes a second or more after the first raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.came: float | None = None  # time of the first Ctrl-C, in seconds of time.monotonic

    def heed(self, pieces: Iterator["Piece"]) -> Iterator["Piece"]:
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


def show_text(pieces: Iterable["Piece"], prompts: list[str], num_samples: int) -> None:
    """Print each prompt with its continuation as the pieces come, below a title if there are several samples.

    A terminal gets control characters as escapes; files and pipes get the text as it is.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    shown_as = SHOWN_ON_TERMINALS if is_terminal else {}
    shown = None  # number of the sample that is being printed
    for piece in pieces:
        if piece.sample != shown:
            prompt, sample = divmod(piece.sample, num_samples)
            title = []
            if len(prompts) > 1:
                title.append(f"prompt {prompt + 1}")
            if num_samples > 1:
                title.append(f"sample {sample + 1}")
            if title:
                gap = "" if shown is None else "\n"
                print(f"{gap}--- {', '.join(title)}")
            print(prompts[prompt].translate(shown_as), end="", flush=True)
            shown = piece.sample

        print(piece.text.translate(shown_as), end="\n" if piece.finish else "", flush=True)


def show_jsonl(
    pieces: Iterable["Piece"], prompts: list[str], num_samples: int, *, logprobs: bool
) -> None:
    """Print one JSON object a line for each sample when it has ended, or when an interruption cuts the sample off."""
    # An interruption leaves samples whose last piece has no finish.
    begun: dict[int, list[Piece]] = {}
    for piece in pieces:
        begun.setdefault(piece.sample, []).append(piece)
        if piece.finish:
            ended = begun.pop(piece.sample)
            print_record(ended, prompts, num_samples, logprobs=logprobs)
    for rest in begun.values():
        print_record(rest, prompts, num_samples, logprobs=logprobs)


def print_record(
    pieces: list["Piece"], prompts: list[str], num_samples: int, *, logprobs: bool
) -> None:
    """Print the JSON object of a sample from its pieces; finish is null if an interruption cut the sample off."""
    prompt, sample = divmod(pieces[0].sample, num_samples)
    record: dict[str, Any] = {
        "prompt": prompts[prompt],
        "sample": sample,
        "text": "".join(piece.text for piece in pieces),
        "finish": pieces[-1].finish,
        "n_tokens": len(pieces),
    }
    if logprobs:
        record["tokens"] = [piece.token for piece in pieces]
        record["logprobs"] = [piece.log_probability for piece in pieces]
    print(json.dumps(record, ensure_ascii=False).translate(JSON_ESCAPES), flush=True)
