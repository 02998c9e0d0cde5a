"""Encoded tasks put together to the files of a prepared folder, each document in its split."""

from contextlib import closing
from pathlib import Path

import numpy as np

from gptmini.data.encoder import Encoder, decoded_whole, end_of
from gptmini.data.preparation.parts import Part, Parts
from gptmini.data.preparation.splits import Census, Rule
from gptmini.data.preparation.tasks import SPLIT_CODES
from gptmini.data.preparation.writing import SplitWriter


def census_of(parts: Parts, n_parts: int) -> Census:
    """Count the documents of parts that have no split yet."""
    census = Census()
    for number in range(n_parts):
        rows = parts.read_rows(number)
        undecided = rows[_is_undecided(rows)]
        census.add(
            hash_bytes=undecided["hash_byte"],
            n_bytes=undecided["n_bytes"],
            n_characters=undecided["n_characters"],
            ends=undecided["ends"],
        )
    return census


def assemble(
    parts: Parts, n_parts: int, rule: Rule, encoder: Encoder, folder: Path, *, place: Path
) -> dict[str, dict]:
    """Write the files of both splits.

    Args:
        parts: the encoded tasks, which are there from 0 to n_parts - 1.
        n_parts: the number of tasks.
        rule: where the documents without a split go.
        encoder: of the tasks; a document that is divided is encoded again around the boundary.
        folder: where the files are written.
        place: what an error of writing names.

    Returns what meta.json says of each split.
    """
    with (
        closing(SplitWriter(folder, "train", place)) as train,
        closing(SplitWriter(folder, "val", place)) as val,
    ):
        position = 0  # undecided characters before the part
        for number in range(n_parts):
            part = parts.read(number)
            if rule.boundary is not None:
                part = _divided(part, rule.boundary - position, encoder)

            is_val = _is_held_out(part.rows, rule, position)
            _write(train, part, ~is_val)
            _write(val, part, is_val)
            position += int(part.rows["n_characters"][_is_undecided(part.rows)].sum())
        return {"train": train.finish(), "val": val.finish()}


def _is_held_out(rows: np.ndarray, rule: Rule, position: int) -> np.ndarray:
    """Whether each row goes to the validation split, bool (n,); position counts undecided characters before them."""
    if rule.boundary is None:
        by_rule = rows["hash_byte"] < rule.threshold
    else:
        by_rule = position + _starts(rows) >= rule.boundary
    return np.where(_is_undecided(rows), by_rule, rows["split"] == SPLIT_CODES["val"])


def _write(writer: SplitWriter, part: Part, chosen: np.ndarray) -> None:
    """Append the chosen rows of a part, bool (n,), to a split."""
    rows = part.rows[chosen]
    ids = part.ids
    if not chosen.all():
        ids = ids[np.repeat(chosen, part.rows["n_ids"])]
    writer.write(
        ids,
        n_ids=rows["n_ids"],
        ends=rows["ends"].astype(bool),
        n_bytes=int(rows["n_bytes"].sum(dtype=np.int64)),
    )


def _divided(part: Part, boundary: int, encoder: Encoder) -> Part:
    """The part with the document that lies across the boundary made into two.

    boundary counts the undecided characters of the part that are trained on; it may lie outside the part.
    """
    rows = part.rows
    starts = _starts(rows)
    stops = starts + rows["n_characters"]
    # A row that ends at the boundary without ending its document has to end it.
    is_across = (starts < boundary) & (
        (stops > boundary) | ((stops == boundary) & (rows["ends"] == 0))
    )
    found = np.flatnonzero(is_across & _is_undecided(rows))
    if not found.size:
        return part

    i = int(found[0])
    row = rows[i]
    first = int(rows["n_ids"][:i].sum(dtype=np.int64))
    last = first + int(row["n_ids"])
    end = end_of(encoder)
    n_end = len(end) if row["ends"] else 0
    text = decoded_whole(encoder, part.ids[first : last - n_end], n_bytes=int(row["n_bytes"]))

    n_train = boundary - int(starts[i])
    new_rows = []
    new_ids = []
    for some, ends in ((text[:n_train], True), (text[n_train:], bool(row["ends"]))):
        if not some:
            continue
        (ids,) = encoder.encode_batch([some])
        if ends:
            ids = np.concatenate((ids, end))
        new = row.copy()
        new["n_bytes"] = len(some.encode())
        new["n_characters"] = len(some)
        new["n_ids"] = len(ids)
        new["ends"] = ends
        new_rows.append(new)
        new_ids.append(ids.astype(part.ids.dtype))
    return Part(
        rows=np.concatenate((rows[:i], np.array(new_rows, dtype=rows.dtype), rows[i + 1 :])),
        ids=np.concatenate((part.ids[:first], *new_ids, part.ids[last:])),
    )


def _is_undecided(rows: np.ndarray) -> np.ndarray:
    """Whether the document of each row has no split yet, bool (n,)."""
    return rows["split"] == SPLIT_CODES[None]


def _starts(rows: np.ndarray) -> np.ndarray:
    """Undecided characters before each row, int64 (n,)."""
    n_characters = np.where(_is_undecided(rows), rows["n_characters"], 0).astype(np.int64)
    return np.cumsum(n_characters) - n_characters
