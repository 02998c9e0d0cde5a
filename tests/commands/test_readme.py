"""The commands in the README and in docs/ run as documented, on shortened runs."""

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
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gptmini.commands import COMMANDS
from gptmini.data.reading.chat_formats import messages_of
from gptmini.key_table import keys_with
from gptmini.runs.run_folder import link_latest
from interop.nanogpt_files import write_nanogpt
from pretended_sweep import TRAIN

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "data" / "README.md"]
# The first words of tested command lines. Commands with python -m, pytest and benchmarks have their own tests.
TYPED = ("gptmini", "tensorboard ", "echo ")
# A launcher's processes import torch, which takes seconds each. test_multirun.py tests them. A server ends only at a
# signal. tests/serving tests it.
TYPED_ELSEWHERE = ("hydra/launcher=joblib", "gptmini serve")


def blocks(document, language):
    """Return the contents of a document's fenced blocks in a language."""
    fenced = rf"^```{language}\n(.*?)^```"
    return re.findall(fenced, document.read_text(), re.MULTILINE | re.DOTALL)


def commands_of(documents):
    """Return every command in the documents' bash blocks once, in order, without comments."""
    commands = []
    for document in documents:
        for line in "".join(blocks(document, "bash")).splitlines():
            command = line.partition(" #")[0].strip()
            if command.startswith(TYPED) and command not in commands:
                commands.append(command)
    return commands


ALL_DOCUMENTED = commands_of(DOCUMENTS)
DOCUMENTED = [
    command for command in ALL_DOCUMENTED if not any(part in command for part in TYPED_ELSEWHERE)
]
CHATS = ("data=text", "data.path=chats.jsonl", "data.template=chat", "data.loss_on=answers")
SHORTENED = {
    "train": [
        "trainer.max_steps=4",
        "trainer.global_batch_size=4",
        "trainer.val_every_steps=4",
        "trainer.val_tokens=256",
        "callbacks.samples.max_new_tokens=4",
        "callbacks.pictures=null",  # the first run and test_watching.py draw them
    ],
    "sample": ["--max-new-tokens", "4"],
    "sweep": ["trainer.max_steps=4"],  # of pretended runs
    "chat": ["--max-new-tokens", "4"],
    "evaluate": ["--max-tokens", "512"],
}


def add_data_of_others(folder, text):
    """Write the files that docs/data.md names: a dataset, token files, and the sources of a mixture."""
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
def short_documentation(tmp_path_factory):
    """Let data=pydoc read only the help topics. Learning merges from two megabytes would take 8 seconds.

    tests/data/test_pydoc.py tests reading an entire library.
    """
    library = tmp_path_factory.mktemp("library")
    (library / "pydoc_data").mkdir()
    topics = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    shutil.copy(topics, library / "pydoc_data")
    (library / "this.py").write_text('"""The module this prints the Zen of Python."""\n')
    with pytest.MonkeyPatch.context() as patch:
        fake = SimpleNamespace(get_path=lambda name: str(library))
        patch.setattr("gptmini.data.corpora.pydoc.sysconfig", fake)
        yield


@pytest.fixture(scope="module")
def clone(tmp_path_factory, short_documentation):
    """Return a clone as a new user has it after the main steps: the scripts, a text, the user's files, a first run."""
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

    chats = [
        [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}!"}]
        for i in range(300)
    ]
    records = [json.dumps({"messages": chat}) for chat in chats]
    (folder / "chats.jsonl").write_text("\n".join(records))

    write_nanogpt(folder, characters="".join(sorted(set(text))))  # docs/exporting.md imports it
    short = [key for key in SHORTENED["train"] if "pictures" not in key]
    for name, arguments in (
        ("train", [*CHATS, "name=helper", *SHORTENED["train"]]),  # docs/chat.md talks to it
        ("train", short),
        ("export", ["runs/pydoc", "gpt2-folder"]),
    ):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            patch.chdir(folder)
            patch.setattr(sys, "argv", [f"scripts/{name}.py", *arguments])
            runpy.run_path(f"scripts/{name}.py", run_name="__main__")

    # docs/watching.md, docs/sweeping.md and docs/configuring.md show these runs. With pytest-xdist, the command that
    # shows a run may come before the command that trains it.
    (first,) = (folder / "runs" / "pydoc").iterdir()
    for copy in ("demo/first", "old/first", "pair/first", "rates/first", "rates/second"):
        shutil.copytree(first, folder / "runs" / copy)
    return folder


def test_the_documents_type_every_command():
    typed = {command.split()[1] for command in ALL_DOCUMENTED if command.startswith("gptmini ")}
    assert typed >= set(COMMANDS)


def test_the_guide_to_resuming_lists_the_keys_that_a_resumed_run_takes():
    guide = (ROOT / "docs" / "resuming.md").read_text()
    section = guide.partition("## What may change")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .* \|$", section, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(.*?)`", row)} == keys_with("resumable")


def anchors_of(document):
    """Return the anchors that GitHub gives to a document's headings."""
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
def type_command(clone, monkeypatch, capfd):
    """Return a function that runs gptmini with arguments in the clone, in this process, to avoid importing torch again.

    It also captures the output of child processes. The runs of a sweep are pretended runs. The measurement of a budget
    is shortened from 18 seconds.
    """

    def run(*arguments, stdin):
        monkeypatch.setattr("gptmini.job.sweeping.TRAIN", TRAIN)
        monkeypatch.setattr("gptmini.job.budget.CHOSEN_SECONDS", 0.2)
        monkeypatch.chdir(clone)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        monkeypatch.setattr(sys, "argv", ["gptmini", *arguments])
        capfd.readouterr()
        try:
            runpy.run_module("gptmini", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code or 0

        return code, *capfd.readouterr()

    return run


@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_documented_commands_run(clone, type_command, command):
    command, _, _ = command.partition(" > ")  # the output is captured anyway
    typed, _, command = command.rpartition(" | ")  # as in echo "..." | gptmini sample ...

    if "input.txt" in command and not (clone / "input.txt").exists():
        pytest.skip("GPTMINI_SHAKESPEARE must name the standard text of 1,115,394 characters")
    if "tokenizer=gpt2" in command and not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")

    program, *arguments = shlex.split(command)
    if program == "tensorboard":
        arguments.append("--inspect")  # reads the same events, then exits
        inspect = [sys.executable, "-m", "tensorboard.main", *arguments]
        result = subprocess.run(inspect, cwd=clone, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "\n   train/loss\n" in result.stdout
        return

    if arguments and not {"--help", "--cfg"} & set(arguments):
        resumed = any(argument.startswith("resume=") for argument in arguments)
        if any("runs/latest" in argument for argument in arguments):
            # The latest run may be that of any other command, in any order of the tests.
            first = min((clone / "runs" / "pydoc").iterdir())
            link_latest(clone / "runs", first)
        shortened = SHORTENED.get(arguments[0], [])
        if any(argument.startswith("epochs=") for argument in arguments):
            # epochs= sets the number of steps. A short training split takes few steps.
            shortened = ["data.val_fraction=0.9", *shortened[1:]]
        arguments += ["trainer.max_steps=6"] if resumed else shortened
        if "tokenizer=gpt2" in arguments and arguments[0] == "train":
            arguments.append("model.d_model=32")  # small, because the vocabulary has 50,257 tokens

    typed = typed.removeprefix('echo "').removesuffix('"') or "Return\n"  # for --interactive
    code, out, err = type_command(*arguments, stdin=typed)
    assert code == 0, err
    assert out
    assert "Traceback" not in err


def test_the_small_chats_are_chats_to_train_on_and_others_to_try(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "small_chats.py"))
    stories = {}
    for name in ("chats", "questions"):
        records = map(json.loads, Path(f"{name}.jsonl").read_text().splitlines())
        stories[name] = {
            messages_of(record, None)[0]["content"].split(". ")[0] for record in records
        }
    assert (len(stories["chats"]), len(stories["questions"])) == (2872, 200)
    assert not stories["chats"] & stories["questions"]
