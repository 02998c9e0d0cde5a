"""gptmini prepare: its output, and what it accepts and refuses."""

import re
import subprocess

import numpy as np

import programs
from gptmini.job.sweep_trials import Trials
from gptmini.sweep import Space
from pretended_sweep import settings


def test_prepare_takes_the_overrides_of_train_and_prepares_its_very_tokens(script, short):
    prepared = script("prepare", *short)
    assert prepared.code == 0, prepared.err
    folder = re.match(r"(\S+), prepared now\n", prepared.out)[1]
    trained = script("train", *short)
    assert f"data     {folder}, prepared before\n" in trained.out


def test_what_gptmini_has_written_among_the_texts_of_a_folder_is_not_read(
    script, trained, tmp_path
):
    def prepare():
        result = script("prepare", "data=text", "data.path=.", "data.on_error=skip")
        assert result.code == 0, result.err
        return result.out

    bytes_of_text = re.compile(r"(?:train|val) .* ([0-9,]+) bytes")
    (tmp_path / "bad.jsonl").write_text('{"text": "One more. "}\nno record\n' * 40)
    for arguments in (
        ("report", str(trained), "--csv", "--out=curves.csv"),
        ("report", str(trained), "--out=page.html"),
        ("export", str(trained), "exported"),
    ):
        result = script(*arguments)
        assert result.code == 0, result.err
    (tmp_path / "runs" / "swept" / "output").mkdir(parents=True)
    Trials(tmp_path / "runs" / "swept", Space({}, {}, []), settings()).describe({"seed": 1})
    (tmp_path / "runs" / "swept" / "output" / "0.txt").write_text("step 1/4")

    # The first command writes skipped.txt, and the second command finds it.
    n_bytes = 40 * len("One more. ") + (tmp_path / "my.txt").stat().st_size
    for _ in range(2):
        out = prepare()
        assert sum(int(n.replace(",", "")) for n in bytes_of_text.findall(out)) == n_bytes
    assert "prepared before" in out

    # The 8 paths: tokens of two runs, the export, the run, runs/latest, the sweep, a page and a table.
    (tmp_path / "bad.jsonl").unlink()
    result = script("evaluate", str(trained), "--text", ".", "--json")
    assert result.code == 0, result.err
    assert re.search(r"8 paths were .* by gptmini\): data/\S+, data/\S+, exported, ", result.err)


def test_verify_reads_a_prepared_folder_whole(script, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr("gptmini.data.prepared.checksums.BLOCK", 1024)
    assert script("prepare", *prepared).code == 0
    sound = script("prepare", *prepared, "verify=true")
    assert ", prepared before, all checksums match\n" in sound.out

    (folder,) = (tmp_path / "data").glob("my-*")
    data = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(data[:3000] + b"\1" + data[3001:])
    assert script("prepare", *prepared).code == 0
    damaged = script("prepare", *prepared, "verify=true")
    damaged.assert_refused("train.bin does not match meta.json")


def test_inspect_shows_what_is_in_the_folder(script, tmp_path):
    (tmp_path / "train.txt").write_text("One two three.|" + "A longer document of the text. " * 3)
    val = "A longer document of the text, a longer: document of the text. A longer one now"
    (tmp_path / "val.txt").write_text(f"{val}|{'Another text altogether. ' * 6}")
    files = ("data.path=train.txt", "data.val_path=val.txt", "data.separator=|")
    out = script("prepare", "data=text", *files, "tokenizer=byte", "inspect=true").out

    def row(name):
        return re.search(rf"^{name} +(\S+(?: of \S+)?) +(\S+(?: of \S+)?)$", out, re.MULTILINE)

    assert row("documents").groups() == ("2", "2")
    assert row("tokens").groups() == (str(14 + 93 + 2), str(len(val) + 150 + 2))
    assert row("bytes").groups() == ("107", str(len(val) + 150))
    n_used = len(set("One two three.A longer document of the text. ")) + 1
    assert row("ids used")[1] == f"{n_used} of 257"
    longest = re.findall(r"^ +(\d+)  (A longer document of the text|One two)", out, re.MULTILINE)
    assert longest[:2] == [("93", "A longer document of the text"), ("14", "One two")]  # of train
    assert re.search(r"^first documents of train\n +One two three\.$", out, re.MULTILINE)


def test_text_may_be_piped_into_the_command(script, tmp_path):
    text = "Piped text, caf\u00e9. " * 40
    options = ("data=text", "data.path=-", "tokenizer=byte")
    process = programs.start("prepare", *options, stdin=subprocess.PIPE)
    _, err = process.communicate(text.encode())
    assert process.returncode == 0, err
    (folder,) = (tmp_path / "data").glob("stdin-byte-*")
    ids = np.fromfile(folder / "train.bin", dtype="<u2").tolist()
    boundary = int(len(text) * 0.9)
    assert bytes(ids[:-1]).decode() == text[:boundary]
