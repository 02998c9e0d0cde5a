"""Toy texts, corpora and models that tests of several rooms share."""

import torch

from gptmini.model import GPTConfig, new_gpt


def lines(n):
    """A text of n lines that are all alike but for their numbers."""
    return "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(n))


class Documents:
    """A corpus of given documents; what it says of its source may be given too."""

    def __init__(self, train, val, *, name="given", source=None):
        self.name = name
        self.splits = {"train": train, "val": val}
        self.source = source or {"corpus": name, "texts": self.splits}

    def identity(self):
        return self.source

    def documents(self, split):
        return iter(self.splits[split])


def wide_gpt(arguments, *, dtype=torch.float32, std=0.3):
    """A model of these arguments of GPTConfig with random weights so wide that every part of it shows in the logits."""
    model = new_gpt(GPTConfig(**arguments), seed=0).to(dtype)
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model
