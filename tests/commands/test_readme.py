"""What the README and the guides in docs/ promise, typed as they say, on runs cut short."""

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from gptmini.commands import COMMANDS
from gptmini.commands.resumed import RESUMABLE
from interop.nanogpt_files import write_nanogpt

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "data" / "README.md"]
# How a line begins that the tests type. Lines of pip, pytest and python -m have tests of their own.
TYPED = ("gptmini", "python scripts/", "tensorboard ", "echo ")


def blocks(document, language):
    """The contents of a document's fenced blocks in a language."""
    fenced = rf"^```{language}\n(.*?)^```"
    return re.findall(fenced, document.read_text(), re.MULTILINE | re.DOTALL)


def commands_of(documents):
    """Every command in the documents' blocks of bash once, in their order, without its comment."""
    commands = []
    for document in documents:
        for line in "".join(blocks(document, "bash")).splitlines():
            command = line.partition(" #")[0].strip()
            if command.startswith(TYPED) and command not in commands:
                commands.append(command)
    return commands


DOCUMENTED = commands_of(DOCUMENTS)
SHORTENED = {
    "train": [
        "trainer.max_steps=4",
        "trainer.global_batch_size=4",
        "trainer.val_every_steps=4",  # once: to draw the pictures of a validation takes a second
        "trainer.val_tokens=256",
        "callbacks.samples.max_new_tokens=4",
    ],
    "sample": ["--max-new-tokens", "4"],
    "sweep": ["trainer.max_steps=4", "trainer.global_batch_size=4", "callbacks.pictures=null"],
    "evaluate": ["--max-tokens", "512"],
}
WILD = ("optimizer=adamw", "optimizer.lr=1e30")  # Muon's steps and RMS norms bear any rate


def add_data_of_others(folder, text):
    """Put what docs/data.md names beside the text: a dataset, token files, and the sources of a mixture."""
    dataset = folder / "roneneldan" / "TinyStories" / "data"
    dataset.mkdir(parents=True)
    stories = pa.table({"text": text.splitlines()})
    parquet.write_table(stories, dataset / "train-00000-of-00001.parquet")

    (folder / "fineweb10B").mkdir()
    for name in ("fineweb_train_000001.bin", "fineweb_val_000000.bin"):
        np.frombuffer(text.encode(), dtype=np.uint8).astype("<u2").tofile(
            folder / "fineweb10B" / name
        )
    for name in ("src/deep/code.py", "books/book.txt"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A folder as after the main job in a clone, cut short: the scripts, a text of the user's own, a first run."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "scripts").symlink_to(ROOT / "scripts")

    text = "".join(f"Line {i} says that {i} times {i} is {i * i}.\n" for i in range(900))
    (folder / "my.txt").write_text(text)
    (folder / "prompts.txt").write_text("The with statement\nReturn\n")
    shakespeare = os.environ.get("GPTMINI_SHAKESPEARE")
    if shakespeare:
        shutil.copy(shakespeare, folder / "input.txt")

    add_data_of_others(folder, text)

    my_configs = folder / "my_configs"
    (my_configs / "model").mkdir(parents=True)
    wide = "defaults: [modern, _self_]\nd_model: 48\nn_layers: 1\n"
    (my_configs / "model" / "wide.yaml").write_text(wide)
    (my_configs / "experiment").mkdir()
    (mine,) = blocks(ROOT / "docs" / "configuring.md", "yaml")
    (my_configs / "experiment" / "mine.yaml").write_text(mine)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["scripts/train.py", *SHORTENED["train"]])
        runpy.run_path("scripts/train.py", run_name="__main__")

    # What docs/exporting.md imports.
    write_nanogpt(folder, characters="".join(sorted(set(text))))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["scripts/export.py", "runs/pydoc", "gpt2-folder"])
        runpy.run_path("scripts/export.py", run_name="__main__")

    # Runs that docs/watching.md, docs/sweeping.md and docs/configuring.md show: pytest-xdist may
    # type the command that shows a run before the command that trains it.
    (first,) = (folder / "runs" / "pydoc").iterdir()
    for copy in ("demo/first", "pair/first", "rates/first", "rates/second"):
        shutil.copytree(first, folder / "runs" / copy)
    return folder


def test_the_documents_type_every_command_and_a_measurement():
    typed = {command.split()[1] for command in DOCUMENTED if command.startswith("gptmini ")}
    assert typed >= set(COMMANDS)
    assert any(command.startswith("python scripts/benchmark.py ") for command in DOCUMENTED)


def test_the_guide_to_resuming_lists_the_keys_that_a_resumed_run_takes():
    guide = (ROOT / "docs" / "resuming.md").read_text()
    section = guide.partition("## What may change")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .* \|$", section, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(.*?)`", row)} == set(RESUMABLE)


def anchors_of(document):
    """What GitHub lets a link to each heading of a document end in, after its #."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", LINKING, ids=lambda document: document.name)
def test_links_between_documents_lead_somewhere(document):
    for link in re.findall(r"\]\((?!http)(.*?)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.fixture
def type_command(stranger, monkeypatch, capfd):
    """Run a program with arguments in the stranger's folder, in this process, which need not import torch again.

    What processes of its own write is captured too.
    """

    def run(program, *arguments, stdin):
        monkeypatch.chdir(stranger)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        capfd.readouterr()
        try:
            if program == "gptmini":
                runpy.run_module("gptmini", run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0

        return code, *capfd.readouterr()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_documented_commands_run(stranger, type_command, command):
    command, _, _ = command.partition(" > ")  # the output is captured anyway
    typed, _, command = command.rpartition(" | ")  # as in echo "..." | gptmini sample ...

    if "input.txt" in command and not (stranger / "input.txt").exists():
        pytest.skip("GPTMINI_SHAKESPEARE must name the standard text of 1,115,394 characters")
    if "tokenizer=gpt2" in command and not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")
    if "benchmark.py" in command:
        pytest.skip("measurements are run by hand; they take minutes")

    program, *arguments = shlex.split(command)
    if "hydra/launcher=joblib" in arguments:
        plugin = "hydra_plugins.hydra_joblib_launcher"
        pytest.importorskip(plugin, reason="pip install 'gptmini[launchers]'")
    if program == "tensorboard":
        arguments.append("--inspect")  # reads the same events, then ends
        inspect = [sys.executable, "-m", "tensorboard.main", *arguments]
        result = subprocess.run(inspect, cwd=stranger, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "\n   train/loss\n" in result.stdout
        return

    if program == "python":
        program = arguments.pop(0)
        name = Path(program).stem
    else:
        name = arguments[0] if arguments else ""
    if not {"--help", "--cfg"} & set(arguments):
        resumed = any(argument.startswith("resume=") for argument in arguments)
        arguments += ["trainer.max_steps=6"] if resumed else SHORTENED.get(name, [])

    typed = typed.removeprefix('echo "').removesuffix('"') or "Return\n"  # what --interactive reads
    code, out, err = type_command(program, *arguments, stdin=typed)
    assert code == 0, err
    assert out
    assert "Traceback" not in err


def test_a_run_folder_holds_what_it_should(script, short, tmp_path):
    assert script("train", *short, "name=demo").code == 0
    (folder,) = (tmp_path / "runs" / "demo").iterdir()
    kinds = {"events" if "tfevents" in path.name else path.name for path in folder.iterdir()}
    assert kinds == {"config.yaml", "checkpoints", "train.log", "events", "metrics.jsonl", "state"}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["trainer"]["max_steps"] == 4
    assert "hydra" not in config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "my.txt", "runs"]


def test_the_end_names_folder_best_loss_sample_and_next_commands(script, short):
    out = script("train", *short).out
    assert re.search(r"^done     4 steps in .+ s$", out, re.MULTILINE)
    best = r"^best     val loss \d\.\d{4}, \d\.\d{4} bits per byte, step 4$"
    assert re.search(best, out, re.MULTILINE)
    assert re.search(r"^sample   ", out, re.MULTILINE)
    assert re.search(r"^next     gptmini sample runs/smoke/\S+$", out, re.MULTILINE)
    assert re.search(r"^         gptmini evaluate runs/smoke/\S+$", out, re.MULTILINE)


def test_tokens_are_prepared_once(script, short):
    assert "prepared now" in script("train", *short).out
    assert "prepared before" in script("train", *short).out
    assert (
        "prepared before"
        in script("prepare", "data=text", "data.path=my.txt", "tokenizer=byte").out
    )


def test_evaluate_repeats_the_loss_that_training_saw(script, short):
    out = script("train", *short, "trainer.val_tokens=null").out
    loss, bits = re.search(r"val loss (\S+), (\S+) bits per byte", out).groups()
    measured = script("evaluate", "runs/latest", "--batch-size", "5").out
    assert re.search(rf"^loss +{loss} nats per token  \[", measured, re.MULTILINE)
    assert re.search(rf"^bits per byte +{bits}  \[", measured, re.MULTILINE)


def test_a_sweep_gives_a_run_to_each_value(script, short, tmp_path):
    assert script("train", "-m", *short, "optimizer.lr=1e-3,3e-4", "name=sweep").code == 0
    runs = sorted((tmp_path / "runs" / "sweep").iterdir())
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in runs]
    assert sorted(config["optimizer"]["lr"] for config in configs) == [3e-4, 1e-3]


def test_prompts_from_argument_file_and_stdin_are_the_same(script, short, tmp_path, monkeypatch):
    script("train", *short)
    (tmp_path / "prompt.txt").write_text("Line 7\n")  # an editor ends the last line
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Line 7\n")))
    texts = [
        script("sample", "runs/latest", "--max-new-tokens", "20", *prompt).out
        for prompt in (["--prompt", "Line 7"], ["--prompt-file", "prompt.txt"], ["--prompt", "-"])
    ]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0].startswith("Line 7")


def test_a_sample_depends_on_seed_and_number_alone(script, short):
    script("train", *short)
    three = script("sample", "runs/latest", "--num-samples", "3", "--seed", "5").out
    two = script("sample", "runs/latest", "--num-samples", "2", "--seed", "5").out
    assert three.startswith(two)
    assert len(set(re.split(r"--- sample \d\n", three))) == 4
    assert script("sample", "runs/latest", "--num-samples", "3", "--seed", "6").out != three


def test_sampling_and_evaluating_load_neither_lightning_nor_hydra(script, short, tmp_path):
    script("train", *short)
    for name in ("sample", "evaluate"):
        probe = (
            "import atexit, json, runpy, sys; sys.argv = [sys.argv[1], 'runs/latest'];"
            "atexit.register(lambda: print(json.dumps(sorted(sys.modules))));"
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        command = [sys.executable, "-c", probe, str(ROOT / "scripts" / f"{name}.py")]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
        )
        loaded = {module.partition(".")[0] for module in json.loads(result.stdout.splitlines()[-1])}
        assert "torch" in loaded
        assert not loaded & {"lightning", "hydra", "omegaconf", "tensorboard"}


def test_a_diverged_run_stops_and_names_the_last_good_checkpoint(script, short, tmp_path):
    settings = ("name=wild", "trainer.max_bad_steps=2", "schedule.warmup_steps=0")
    result = script("train", *short, *WILD, *settings)
    assert result.code == 2
    assert result.err.count("\n") == 1
    reason = "2 steps in a row, to step 3, had a loss or gradient that is not finite"
    assert f"error: {reason}" in result.err
    (folder,) = (tmp_path / "runs" / "wild").iterdir()
    assert "step 2 not applied: loss" in (folder / "train.log").read_text()
