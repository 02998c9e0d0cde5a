"""The program that learns byte pairs in a separate process.

The program reads texts from stdin. The length of each text precedes the text, and a length of 0 ends the input. The
program writes the vocabulary to stdout as JSON.

The tokenizers library cannot be interrupted while it merges. This process exits as soon as its stdin closes.
Therefore, this process never runs longer than the process that started it.
"""

import json
import os
import sys
from collections.abc import Iterator
from threading import Thread

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def read_texts() -> Iterator[str]:
    """Yield the UTF-8 texts of stdin. Exit the process if stdin closes before it has sent a length of 0."""
    while size := int.from_bytes(read_exactly(8), "little"):
        yield read_exactly(size).decode()
    Thread(target=exit_with_input, daemon=True).start()


def read_exactly(n_bytes: int) -> bytes:
    """Return the next n_bytes of stdin. Exit the process if stdin has fewer bytes."""
    data = sys.stdin.buffer.read(n_bytes)
    if len(data) < n_bytes:
        os._exit(1)
    return data


def exit_with_input() -> None:
    """Exit the process when stdin closes, because nobody waits for the result."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    learner = Tokenizer(models.BPE())
    # Split the text with GPT-2's pattern, and write each byte as a letter.
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=int(sys.argv[1]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(read_texts(), trainer)

    json.dump(learner.get_vocab(), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # skip Python's shutdown, because the thread still waits for stdin to close
