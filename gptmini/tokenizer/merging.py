"""The program that learns byte pairs: texts in, each behind its length, and a length of 0; the vocabulary out, as JSON.

The library tokenizers cannot be interrupted while it merges. So it runs in a process of its own, which ends as soon as
its standard input does, however the process ended that wrote to it.
"""

import json
import os
import sys
from collections.abc import Iterator
from threading import Thread

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def texts() -> Iterator[str]:
    """The texts that come in, UTF-8; the process ends if they end without a length of 0."""
    while size := int.from_bytes(exactly(8), "little"):
        yield exactly(size).decode()
    Thread(target=end_with_input, daemon=True).start()


def exactly(n_bytes: int) -> bytes:
    """The next bytes of the input; the process ends if there are fewer."""
    data = sys.stdin.buffer.read(n_bytes)
    if len(data) < n_bytes:
        os._exit(1)
    return data


def end_with_input() -> None:
    """End the process once nobody waits for its answer."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    learner = Tokenizer(models.BPE())
    # GPT-2's rule, and a letter for each byte.
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=int(sys.argv[1]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(texts(), trainer)

    json.dump(learner.get_vocab(), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the thread that waits for the end of the input may not outlive Python's own end
