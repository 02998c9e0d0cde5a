"""Toy texts, corpora and models for tests of several packages."""

import torch

from gptmini.data import Corpus, Document
from gptmini.interop.hugging_face import build_gpt, to_gpt_config
from gptmini.model import GPTConfig, new_gpt


def lines(n):
    """Return a text of n lines that differ only in their numbers."""
    return "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(n))


def documents_of(train, val=()):
    """Return the documents of a corpus of these texts, from which a tokenizer is built."""
    return [Document("train", text) for text in train] + [Document("val", text) for text in val]


class Documents(Corpus):
    """A corpus of given documents: train, val, or without a split. Its identity may be given as source."""

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
    """Return a model of GPTConfig(**arguments), with random weights so wide that every part shows in the logits."""
    model = new_gpt(GPTConfig(**arguments), seed=0).to(dtype)
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


def from_hugging_face(config, state):
    """Return the GPT of a model of transformers: its config's to_dict(), and its state_dict()."""
    return build_gpt(to_gpt_config(config), state, config["model_type"])
