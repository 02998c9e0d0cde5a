"""Answer lines of stdin, and print a stream of pieces as text or JSON lines, until the first Ctrl-C."""

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from gptmini import data, generation
from gptmini.commands.mistakes import print_error
from gptmini.console.printing import print_note
from gptmini.system.errors import UserError
from gptmini.system.process import MISUSE
from gptmini.system.signals import CtrlC

# Control characters (Unicode's C0, DEL and C1) except line break and tab, and the text that a terminal gets instead. A
# model may write any control character. A terminal executes some of them: an escape sequence can set its title or its
# clipboard.
SHOWN_ON_TERMINALS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
# The same for JSON, which escapes the characters below U+0020 itself. The last two ranges change the direction of text.
SHOWN_IN_JSON = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def prepare_stdin() -> bool:
    """Prepare stdin for lines of text, and return whether it is a terminal.

    At a terminal, input() gets arrow keys and a history, and returns pasted text as one line with line breaks in it.
    From a pipe or a file, lines may end as on Windows. Invalid UTF-8 becomes lone surrogates, which tokenizers refuse
    with an error for this line.
    """
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape", newline=None)
        return False
    with suppress(ImportError):  # not every Python has readline
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")
    return True


def answer_lines(answer: Callable[[str, CtrlC], None], hint: str) -> int:
    """Answer each line of stdin until its end, or until answer raises EOFError. Return the exit code.

    Ctrl-C drops the line that the user types, or stops an answer and keeps its text.

    The exit code is MISUSE if a line from a pipe or a file could not be answered. At a terminal, it is 0, because the
    user has already seen the error.
    """
    is_typed = prepare_stdin()
    is_complete = True
    if is_typed:
        print_note(hint)
    with CtrlC() as ctrl_c:
        for line in lines(ctrl_c, is_typed=is_typed):
            ctrl_c.number = 0
            try:
                answer(line, ctrl_c)
            except UserError as error:
                print_error(str(error))
                is_complete = False
            except KeyboardInterrupt:
                print(flush=True)
            except EOFError:
                break
    return 0 if is_complete or is_typed else MISUSE


def lines(ctrl_c: CtrlC, *, is_typed: bool) -> Iterator[str]:
    """Yield the lines of the input. Pasted text is one line, with line breaks in it."""
    if not is_typed:
        for line in sys.stdin:
            yield line.removesuffix("\n")
        return

    while True:
        line = None
        try:
            ctrl_c.is_typing = True
            line = input("> ")
            ctrl_c.is_typing = False
        except KeyboardInterrupt:  # it may come just after the line was complete
            ctrl_c.is_typing = False
            if line is None:
                print()
                continue
        except EOFError:
            print()
            return
        yield line


def show_text(
    pieces: "Iterable[generation.TextPiece]",
    prompts: list[str],
    num_samples: int,
    store: "data.TokenStore | None",
    *,
    mark: bool,
) -> None:
    """Print each prompt with its continuation while the pieces arrive. If there are several samples, each has a title.

    A terminal gets control characters as escapes. Files and pipes get the text unchanged. The pieces of one sample must
    be consecutive, here and in show_jsonl.

    After a sample, print which part of it is copied from the training text, `store`. With `mark`, print the sample only
    when it is complete, with [[ ]] around all such parts.
    """
    escapes = SHOWN_ON_TERMINALS if sys.stdout.isatty() else {}
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

        print(prompts[prompt].translate(escapes), end="", flush=True)
        shown = []
        for piece in of_sample:
            shown.append(piece)
            if not mark:
                print(piece.text.translate(escapes), end="\n" if piece.finish else "", flush=True)
        if store is None or not shown:
            continue
        if not mark and shown[-1].finish is None:  # after Ctrl-C
            print(flush=True)

        copies = data.find_copies([piece.token for piece in shown], store)
        if mark:
            print("".join(marked(shown, copies)).translate(escapes), flush=True)
        if copies.longest is not None:
            print_note(f"copied   {copies} ({data.place_of(copies.longest, store)})")
        elif mark:
            print_note(f"copied   {copies}")


def marked(pieces: "Sequence[generation.TextPiece]", copies: "data.Copies") -> Iterator[str]:
    """Yield the text of the pieces, with [[ ]] around copied parts. Parts that overlap are one part."""
    is_copied = {i for span in copies.spans for i in range(span.start, span.end)}
    for i, piece in enumerate(pieces):
        begins = i in is_copied and i - 1 not in is_copied
        ends = i in is_copied and i + 1 not in is_copied
        if begins:
            yield "[["
        yield piece.text
        if ends:
            yield "]]"


def show_jsonl(
    pieces: "Iterable[generation.TextPiece]",
    prompts: list[str],
    num_samples: int,
    *,
    logprobs: bool,
) -> None:
    """Print a line with a JSON object for each sample. The entry finish is null if Ctrl-C cut the sample off."""
    escapes = SHOWN_IN_JSON if sys.stdout.isatty() else {}
    for number, of_sample in groupby(pieces, key=lambda piece: piece.sample):
        prompt, sample = divmod(number, num_samples)
        all_pieces = list(of_sample)
        record: dict[str, Any] = {
            "prompt": prompts[prompt],
            "sample": sample,
            "text": "".join(piece.text for piece in all_pieces),
            "finish": all_pieces[-1].finish,
            "n_tokens": len(all_pieces),
        }
        if logprobs:
            record["tokens"] = [piece.token for piece in all_pieces]
            record["logprobs"] = [piece.log_probability for piece in all_pieces]
        print(json.dumps(record, ensure_ascii=False).translate(escapes), flush=True)
