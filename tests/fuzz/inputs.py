"""Broken inputs: junk that stands in the place of a value, and damage to bytes."""

import copy
import math
from functools import reduce
from operator import getitem
from types import SimpleNamespace

import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

RAN = "ran"  # a file that foreign code would leave in the working folder
GONE = "(deleted)"  # stands for an entry that is deleted
# Lists in lists, so many deep.
NESTED = {f"nested {n}": "[" * n + "]" * n for n in (9, 99, 400, 960, 3000)}

# What plain data may hold in the place of a value.
JUNK = [
    GONE,
    None,
    True,
    0,
    -1,
    10**12,
    2**70,
    1.5,
    math.nan,
    math.inf,
    "",
    "x",
    "a\nb",
    "é" * 5000,
    "\ud800",
    "${x}",
    [],
    [[]],
    [3, 3],
    ["x", None],
    {},
    {"x": 1},
    {"kind": []},
    {"_target_": []},
    [[[["x"] * 9] * 9] * 9],
]

# What a pickle may hold in the place of a value.
PICKLED = [
    *JUNK,
    torch.zeros(3),
    torch.tensor(3),
    torch.tensor([3, 3]),
    torch.zeros(3, device="meta"),
    {3: [{}]},
    b"\xff",
    {3},
    (3, 3),
    1j,
    torch.float16,
    10**5000,
    {"d_model": torch.tensor([3, 3])},
    [torch.zeros(3)],
]

# What makes something else of a tensor.
TORN = [
    torch.Tensor.double,
    torch.Tensor.int,
    torch.Tensor.bool,
    torch.Tensor.cfloat,
    torch.Tensor.to_sparse,
    torch.Tensor.sum,
    torch.Tensor.tolist,
    torch.Tensor.flatten,
    torch.Tensor.isnan,
    torch.Tensor.numel,
    torch.Tensor.unbind,
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor[:1],
]


def fuzz(n_inputs):
    """Run a test with so many inputs, the same each time, however slow or large they are to make."""
    return settings(
        max_examples=n_inputs,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


KINDS = st.sampled_from(["flip", "cut", "overwrite", "insert", "repeat"])
DAMAGE = st.lists(
    st.tuples(KINDS, st.integers(0, 2**20), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=3,
)


def damaged(data, damage):
    """Bytes after some damage: each a kind, a place (counted from the start again beyond the end), and content."""
    whole = data
    for kind, place, content in damage:
        at = place % max(1, len(data))
        after = data[at:]

        if kind == "flip":
            after = bytes(byte ^ 1 << content[0] % 8 for byte in after[:1]) + after[1:]
        elif kind == "cut":
            after = b""
        elif kind == "overwrite":
            after = content + after[len(content) :]
        elif kind == "insert":
            after = content + after
        else:
            after = after[: 64 * len(content)] + after
        data = data[:at] + after

    assume(data != whole)
    return data


def places(tree):
    """The path to every entry of a tree of dicts and lists, to the first three of a list."""
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree[:3])
    else:
        items = ()

    for key, value in items:
        yield (key,)
        yield from ((key, *path) for path in places(value))


@st.composite
def changes(draw, tree, values):
    """The path to one entry, and what is to stand there, or a function that makes it of what stands there."""
    path = draw(st.sampled_from([*places(tree)]))
    is_tensor = isinstance(reduce(getitem, path, tree), torch.Tensor)
    if is_tensor and draw(st.booleans()):
        values = TORN
    return path, draw(st.sampled_from(values))


def changed(tree, change):
    """A copy of the tree with that change."""
    path, value = change
    tree = copy.deepcopy(tree)
    node = reduce(getitem, path[:-1], tree)

    if value is GONE:
        del node[path[-1]]
        return tree

    try:
        value = value(node[path[-1]]) if value in TORN else value
    except (RuntimeError, IndexError):  # this tensor has no such form
        assume(False)

    assume(not same(node[path[-1]], value))
    node[path[-1]] = value
    return tree


def same(one, other):
    """Whether two trees of plain data and tensors are equal, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        alike = (one.dtype, one.layout, one.device) == (other.dtype, other.layout, other.device)
        return alike and torch.equal(one, other)

    both_are_no_number = one != one and other != other
    return one == other or both_are_no_number


class Made(SimpleNamespace):
    """What a fixture made. The report of a failure shows nothing of it, as it is large."""

    def __repr__(self):
        return "made"
