"""Junk on the command line, and foreign code in the configuration of a run that goes on."""

import io
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuzz.inputs import PACKAGE, broken, fuzz, same
from gptmini.commands.compose import compose
from gptmini.commands.errors import one_line_errors
from gptmini.commands.parts import build_settings
from gptmini.commands.resumed import going_on
from gptmini.commands.train import train
from toys import lines

pytestmark = pytest.mark.slow  # together they take seconds


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The current folder of all these tests, with a text in it."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("fuzz")
        (path / "my.txt").write_text(lines(40))
        patch.chdir(path)
        patch.delenv("GPTMINI_TRACEBACK", raising=False)
        yield path


def refused(act):
    """Whether act ends as a mistake does on the command line: exit code 2 and one line on stderr."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), one_line_errors():
            act()
        return False
    except SystemExit as end:
        code = end.code
    except RecursionError:  # pytest takes minutes to print one of Hydra's
        raise AssertionError("ends in a RecursionError") from None

    assert code == 2
    assert [line[:7] for line in said.getvalue().splitlines()] == ["error: "]
    assert said.getvalue() != "error: \n"
    return True


KEYS = ["callbacks", "callbacks.scalars", "name", "seed", "resume", "folder", "init_from", "freeze"]
KEYS += ["runs_dir", "data_dir", "console", "hydra.run.dir", "_target_", "model._target_"]
for file in sorted((PACKAGE.parent / "configs").glob("*/*.yaml")):
    KEYS += [f"{file.parent.name}.{key}" for key in yaml.safe_load(file.read_text("utf-8"))]

WORDS = """
??? null nan -inf 1e400 -1 0 1_0 true x ' "x" [ [] {} [1, {a:1} 1,2 range(1,3) choice(1,2) glob(*) int(x) a=b .. /
é @x \\ tiny [tiny,gpt2] $ ${ auto 00:01 :: cpu {_target_:os.mkdir,path:ran} {max_steps:[1]} ${seed} ${name}
${model} ${oc.env:NO} ${oc.env:HOME} ${x} ${oc.decode:[} ${oc.create:{_target_:os.mkdir,path:ran}} ${..seed}
"""
VALUES = [*WORDS.split(), "", "\0", "a\nb", "\udce9", "x" * 5000, "9" * 5000, "[" * 400 + "]" * 400]

# An override: now and then with a prefix, mostly of a key that exists, now and then without a value.
OVERRIDES = st.tuples(
    st.sampled_from(["", "", "", "", "+", "++", "~"]),
    st.sampled_from(KEYS) | st.sampled_from(KEYS) | st.text(max_size=9),
    st.sampled_from(["=", "=", "=", "=", "=", ""]),
    st.sampled_from(VALUES) | (st.integers() | st.floats()).map(str) | st.text(max_size=9),
).map("".join)


@fuzz(50)
@given(overrides=st.lists(OVERRIDES, min_size=1, max_size=2))
def test_overrides_of_junk_make_a_configuration_or_are_refused_in_one_line(overrides):
    def check():
        config, _ = going_on(*compose("train", overrides))
        build_settings(config)

    refused(check)
    assert not Path("ran").exists()


FOREIGN = [
    {"_target_": "os.mkdir", "path": "ran"},
    {"_target_": "os.getcwd"},
    "${oc.create:{_target_: os.mkdir, path: ran}}",
    {"_target_": "${oc.decode:os.mkdir}", "path": "ran"},
    [{"x": {"_target_": "os.mkdir", "path": "ran"}}],
]


@pytest.fixture(scope="module")
def stored(folder):
    """The configuration of a run of four steps, and the file that holds it."""
    train(*compose("train", ["experiment=smoke", "data=text", "data.path=my.txt", "console=quiet"]))
    (path,) = folder.glob("runs/smoke/*/config.yaml")
    return path, yaml.safe_load(path.read_text())


def go_on(path, config):
    """The configuration by which a run with this one goes on."""
    path.write_text(yaml.safe_dump(config))
    return going_on(*compose("train", [f"resume={path.parent}"]))[0]


def test_the_configuration_of_a_run_is_read_as_it_is_stored(stored):
    path, config = stored
    read = go_on(path, config)
    assert same(yaml.safe_load(yaml.safe_dump(config["model"])), dict(read.model))
    assert not refused(lambda: build_settings(read))


@fuzz(20)
@given(data=st.data())
def test_a_configuration_that_names_foreign_code_is_refused_and_nothing_runs(stored, data):
    path, config = stored
    # What was typed is text, which nobody computes.
    typed = {"typed": config["typed"]}
    wrong = data.draw(broken({key: config[key] for key in config if key != "typed"}, FOREIGN))
    assert refused(lambda: build_settings(go_on(path, wrong | typed)))
    assert not Path("ran").exists()
