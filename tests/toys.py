"""Toy texts, corpora and models that tests of several rooms share."""

import torch

from gptmini.data import Corpus, Document
from gptmini.model import GPTConfig, new_gpt


def lines(n):
    """A text of n lines that are all alike but for their numbers."""
    return "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(n))


def documents_of(train, val=()):
    """The documents of a corpus of these texts, as its tokenizer is built from them."""
    return [Document("train", text) for text in train] + [Document("val", text) for text in val]


class Documents(Corpus):
    """A corpus of given documents, those of train and val, or those without a split; its identity may be given too."""

    def __init__(
        self, train=(), val=(), *, undecided=(), val_fraction=None, name="given", source=None
    ):
        self.name = name
        self.splits = {"train": train, "val": val, None: undecided}
        self.val_fraction = val_fraction
        self.source = source or {"texts": [*self.splits.values()], "val_fraction": val_fraction}

    def identity(self, digest_of):
        return self.source

    def documents(self):
        for split, texts in self.splits.items():
            for text in texts:
                yield Document(split, text)


def wide_gpt(arguments, *, dtype=torch.float32, std=0.3):
    """A model of these arguments of GPTConfig with random weights so wide that every part of it shows in the logits."""
    model = new_gpt(GPTConfig(**arguments), seed=0).to(dtype)
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model
