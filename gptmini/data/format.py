"""What whoever writes a prepared folder and whoever reads it agree on; data/README.md describes the files."""

import hashlib
import json

FORMAT = 2  # version of the files; part of the fingerprint, so that other rules make other folders
OLD_FORMAT = 1  # still read: it has no index of documents, and one checksum for a whole file

SPLITS = ("train", "val")  # training text, and text that is held out for validation
CHECKSUMS = ("crc32", "index_crc32")  # lists of numbers that meta.json gives of each split

# Bytes that a checksum stands for. Small, so that opening a folder, which checks the first and the last of each file,
# takes milliseconds; the checksums of ten billion ids are then 200 kB of meta.json.
BLOCK = 2**20


def digest_of_json(value: object) -> str:
    """SHA-256 of a value in plain JSON types, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
