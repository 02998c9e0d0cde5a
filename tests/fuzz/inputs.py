"""Broken inputs: junk in place of values. outcome() checks how reading them may end."""

import copy
import math
import traceback
from functools import reduce
from itertools import islice
from operator import getitem
from pathlib import Path

import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from gptmini.system.errors import UserError

PACKAGE = Path(__file__).parent.parent.parent / "gptmini"
GONE = "(deleted)"  # marks an entry to delete

# Junk values for plain data.
JUNK = [
    GONE,
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    math.nan,
    math.inf,
    "",
    "x",
    "a\nb",
    "é" * 5000,
    "\ud800",
    [],
    [1],
    [3, 3],
    [-5, 3],
    ["x", None],
    {},
    {"kind": []},
    [[[["x"] * 9] * 9] * 9],
]

# Junk values for a pickle.
PICKLED = [
    *JUNK,
    torch.zeros(3),
    torch.tensor(3),
    torch.zeros(3, device="meta"),
    {3: [{}]},
    b"\xff",
    {3},
    (3, 3),
    1j,
    torch.float16,
    {"d_model": torch.tensor([3, 3])},
]

# Each function turns a tensor into something else.
TORN = [
    torch.Tensor.double,
    torch.Tensor.cfloat,
    torch.Tensor.to_sparse,
    torch.Tensor.sum,
    torch.Tensor.tolist,
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor[:1],
]


def fuzz(n_inputs):
    """Run a test with n_inputs inputs, the same each time, however slow or large they are."""
    return settings(
        max_examples=n_inputs,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def places(tree):
    """Yield the path to each entry of a tree of dicts and lists: the first 30 of a dict, the first three of a list."""
    entries = {}
    if isinstance(tree, dict):
        entries = dict(islice(tree.items(), 30))
    elif isinstance(tree, list):
        entries = dict(enumerate(tree[:3]))
    for key, value in entries.items():
        yield (key,)
        yield from ((key, *path) for path in places(value))


@st.composite
def broken(draw, tree, values):
    """Draw a copy of the tree with one entry deleted or replaced."""
    path = draw(st.sampled_from([*places(tree)]))
    tree = copy.deepcopy(tree)
    node = reduce(getitem, path[:-1], tree)
    before = node[path[-1]]

    if isinstance(before, torch.Tensor) and draw(st.booleans()):
        try:
            after = draw(st.sampled_from(TORN))(before)
        except (RuntimeError, IndexError):  # impossible for this tensor
            assume(False)
    else:
        after = draw(st.sampled_from(values))
    assume(not same(before, after))

    if after is GONE:
        del node[path[-1]]
    else:
        node[path[-1]] = after
    return tree


def same(one, other):
    """Return whether two trees of plain data and tensors are equal, including types."""
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


def outcome(read, *arguments, names=""):
    """Return the result of read, or None if it raises a UserError.

    The error must have one line, come from gptmini's own code, and contain names.
    """
    try:
        return read(*arguments)
    except UserError as caught:
        error = caught
    raised_by = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    assert raised_by.is_relative_to(PACKAGE), f"{raised_by} says: {error}"
    assert len(str(error).splitlines()) == 1, str(error)
    assert names in str(error), str(error)
    return None
