"""Junk on the command line."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuzz.inputs import NESTED, fuzz
from fuzz.outcomes import ROOT, refused
from gptmini.commands.compose import compose
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import build_settings

pytestmark = pytest.mark.slow  # together they take minutes

YAMLS = sorted((ROOT / "configs").glob("*/*.yaml"))
KEYS = []
for file in YAMLS:
    KEYS += [f"{file.parent.name}.{key}" for key in yaml.safe_load(file.read_text("utf-8"))]
KEYS += [
    *sorted({file.parent.name for file in YAMLS}),
    "callbacks",
    "callbacks.scalars",
    "callbacks.samples.top_k",
    "name",
    "seed",
    "resume",
    "folder",
    "init_from",
    "freeze",
    "runs_dir",
    "data_dir",
    "console",
    "hydra.run.dir",
    "_target_",
    "model._target_",
]

VALUES = [
    "",
    "???",
    "null",
    "nan",
    "-inf",
    "1e400",
    "-1",
    "0",
    "1_0",
    "true",
    "x",
    "'",
    '"x"',
    "[",
    "[]",
    "{}",
    "[1,",
    "{a: 1}",
    "1,2",
    "range(1,3)",
    "choice(1,2)",
    "glob(*)",
    "int(x)",
    "x" * 5000,
    "9" * 5000,
    "a=b",
    "..",
    "/",
    "\0",
    "a\nb",
    "\udce9",
    "é",
    "@x",
    "\\",
    "tiny",
    "[tiny, gpt2]",
    "$",
    "${",
    "auto",
    "00:01",
    "::",
    "cpu",
    NESTED["nested 99"],
    NESTED["nested 400"],
    "{_target_: os.mkdir, path: ran}",
    "{max_steps: [1]}",
    str(2**70),
    "${seed}",
    "${name}",
    "${model}",
    "${trainer.max_steps}",
    "${oc.env:NO}",
    "${oc.env:HOME}",
    "${x}",
    "${oc.decode:[}",
    "${oc.create:{_target_: os.mkdir, path: ran}}",
    "${..seed}",
    "${hydra:job.name}",
    "${}",
]

# An override: now and then with a prefix, mostly of a key that exists, now and then without a value.
OVERRIDES = st.tuples(
    st.sampled_from(["", "", "", "", "+", "++", "~"]),
    st.sampled_from(KEYS) | st.sampled_from(KEYS) | st.sampled_from(KEYS) | st.text(max_size=9),
    st.sampled_from(["=", "=", "=", "=", "=", ""]),
    st.sampled_from(VALUES)
    | st.sampled_from(VALUES)
    | (st.integers() | st.floats()).map(str)
    | st.text(max_size=9),
)


@pytest.mark.slow
@fuzz(60)
@given(overrides=st.lists(OVERRIDES.map("".join), min_size=1, max_size=2))
def test_overrides_of_junk_make_a_configuration_or_are_refused_in_one_line(run, overrides):
    def check():
        config, _ = going_on(*compose("train", overrides))
        build_settings(config)

    refused(check)
