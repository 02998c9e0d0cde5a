"""Broken inputs: junk that stands in the place of a value, and damage to bytes."""

import copy
import math
from functools import reduce
from operator import getitem
from types import SimpleNamespace

import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

RAN = "ran"  # what foreign code would leave in the working folder

GONE = "(deleted)"  # stands for an entry's deletion

NESTED = {f"nested {n}": "[" * n + "]" * n for n in (9, 99, 400, 960, 3000)}

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
]

JUNK += [
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

PICKLED = [
    *JUNK,
    torch.zeros(3),
    torch.tensor(3),
    torch.tensor([3, 3]),
    torch.zeros(3, device="meta"),
    {3: [{}]},
]

PICKLED += [
    b"\xff",
    {3},
    (3, 3),
    1j,
    torch.float16,
    10**5000,
    {"d_model": torch.tensor([3, 3])},
    [torch.zeros(3)],
]

METHODS = (
    "double",
    "int",
    "bool",
    "cfloat",
    "to_sparse",
    "sum",
    "tolist",
    "flatten",
    "isnan",
    "numel",
    "unbind",
)

TORN = [getattr(torch.Tensor, name) for name in METHODS] + [
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor[:1],
]


def fuzz(n_inputs):
    checks = list(HealthCheck)  # of inputs that are slow or large to make, as these are
    return settings(
        max_examples=n_inputs,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=checks,
    )


KINDS = st.sampled_from(["flip", "cut", "overwrite", "insert", "repeat"])

DAMAGE = st.lists(
    st.tuples(KINDS, st.integers(0, 2**20), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=3,
)


def damaged(data, damage):
    """Bytes after each damage, at a place that is counted round and round."""
    whole = data
    for kind, place, content in damage:
        at = place % max(1, len(data))
        after = data[at:]
        end = {
            "flip": bytes(byte ^ 1 << content[0] % 8 for byte in after[:1]) + after[1:],
            "cut": b"",
            "overwrite": content + after[len(content) :],
            "insert": content + after,
            "repeat": after[: 64 * len(content)] + after,
        }
        data = data[:at] + end[kind]

    assume(data != whole)
    return data


def places(tree):
    """The path to every entry of a tree of dicts and lists, to the first three of a list."""
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree[:3])
        if isinstance(tree, list)
        else ()
    )

    for key, value in items:
        yield (key,)
        yield from ((key, *path) for path in places(value))


@st.composite
def changes(draw, tree, values):
    """The path to one entry, and what is to stand there, or a function that makes it of what stands there."""
    path = draw(st.sampled_from([*places(tree)]))
    tensor = isinstance(reduce(getitem, path, tree), torch.Tensor)
    return path, draw(st.sampled_from(TORN if tensor and draw(st.booleans()) else values))


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

    return one == other or (one != one and other != other)  # not a number


class Made(SimpleNamespace):
    """What a fixture made, of which the report of a failure shows nothing."""

    def __repr__(self):
        return "made"
