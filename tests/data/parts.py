"""What several tests of this room do with documents that come in parts."""

import hashlib


def whole(parts):
    """The texts of documents, put together from pieces of a file or parts of a corpus; the last must end."""
    texts = [""]
    for part in parts:
        texts[-1] += part.text
        if part.ends:
            texts.append("")
    assert texts.pop() == ""
    return texts


def by_split(corpus):
    """The texts of a corpus by their split; None stands for those whose split the corpus leaves open."""
    documents = list(corpus.documents())
    splits = dict.fromkeys(document.split for document in documents)
    return {split: whole(part for part in documents if part.split == split) for split in splits}


def digest_of(path):
    """The digest of a file, as a preparation gives it to a corpus."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def first_byte(text):
    """The byte that decides the split of a text, as docs/data.md says."""
    return hashlib.sha256(text.encode()).digest()[0]
