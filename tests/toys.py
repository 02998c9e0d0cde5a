"""Toy texts, corpora and models that tests of several rooms share."""

import hashlib
import json

import torch

from gptmini.data import Corpus, Document, Watcher
from gptmini.data.splits import SplitDocuments, build_from
from gptmini.model import GPTConfig, new_gpt


def lines(n):
    """A text of n lines that are all alike but for their numbers."""
    return "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(n))


def documents_of(train, val=()):
    """The documents of a corpus of these texts, as its tokenizer is built from them."""
    return [Document("train", text) for text in train] + [Document("val", text) for text in val]


def texts_of(corpus, split):
    """The documents of one split of a corpus, in their order, each put together from its parts."""
    texts = []
    parts = []
    for document in build_from(list, SplitDocuments(corpus, Watcher())):
        if document.split == split:
            parts.append(document.text)
            if document.ends:
                texts.append("".join(parts))
                parts = []
    assert not parts
    return texts


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


def canonical(value):
    """The bytes of a value as data/README.md says that they are digested."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def change_meta(folder, change):
    """Change meta.json of a prepared folder, and give it the digest of what it then says, as a stranger could."""
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    del meta["digest"]
    meta["digest"] = hashlib.sha256(canonical(meta)).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
