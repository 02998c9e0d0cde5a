"""Helpers of these tests for documents that arrive in parts."""

import hashlib


def whole(parts):
    """Join parts of documents to the texts of documents. The last part must end its document."""
    texts = [""]
    for part in parts:
        texts[-1] += part.text
        if part.ends:
            texts.append("")
    assert texts.pop() == ""
    return texts


def by_split(corpus):
    """Return the texts of a corpus by split; None is the key of documents without a split."""
    documents = list(corpus.documents())
    splits = dict.fromkeys(document.split for document in documents)
    return {split: whole(part for part in documents if part.split == split) for split in splits}


def digest_of(path):
    """Return the digest of a file, as a preparation passes it to a corpus."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def first_byte(text):
    """Return the byte that decides the split of a text, as documented in docs/data.md."""
    return hashlib.sha256(text.encode()).digest()[0]
