"""gptmini prepare: its output, and what it accepts and refuses."""

import json
import re
import subprocess

import numpy as np
from tokenizers import processors

import programs
from gptmini.job.sweep_trials import Trials
from gptmini.sweep import Space
from interop.library_tokenizers import learned
from pretended_sweep import settings

LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "eos_token_id": 1,
}


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
    monkeypatch.setattr("gptmini.data.stored_file.BLOCK", 1024)
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
    assert "          93  A longer document of the text. A longer" in out
    assert re.search(r"^first documents of train\n +One two three\.$", out, re.MULTILINE)


def test_bytes_a_token_are_those_of_all_tokens_also_where_the_loss_counts_answers(script, tmp_path):
    """Test every line that prints them beside the number of all tokens."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    )
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    tokenizer = learned("where is the cat? user assistant", special=["<s>", "</s>"])
    tokenizer.post_processor = processors.ByteLevel()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    chat = [
        {"role": "user", "content": "where is the cat? " * 3},
        {"role": "assistant", "content": "XYZ"},
    ]
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps({'messages': chat})}\n" * 10)

    rendered = "".join(f"{message['role']}: {message['content']}\n" for message in chat)
    n_tokens = len(tokenizer.encode(rendered).ids) + 1
    expected = f"{len(rendered) / n_tokens:.2f}"

    files = ("data.path=[chats.jsonl]", "data.val_path=[val.jsonl]")
    (tmp_path / "val.jsonl").write_text((tmp_path / "chats.jsonl").read_text())
    how = ("data.template=chat", "data.loss_on=answers")
    of_model = ("tokenizer=of_model", "tokenizer.path=model")
    result = script("prepare", "data=text", *files, *how, *of_model, "inspect=true")
    assert result.code == 0, result
    found = re.findall(r"([\d.]+) bytes per token$", result.out, re.MULTILINE)
    found += re.search(r"^bytes per token +(\S+) +(\S+)$", result.out, re.MULTILINE).groups()
    assert found == [expected] * 4


def test_records_that_were_left_out_are_listed(script, tmp_path):
    rows = "".join(f'{{"text": "This is record {i}."}}\n' for i in range(50))
    (tmp_path / "a.jsonl").write_text(f"{rows}broken\n{rows}[]\n")
    data = ("data=text", "data.path=a.jsonl", "data.on_error=skip", "tokenizer=byte")
    out = script("prepare", *data).out
    listed = re.search(r"^skipped records are listed in (\S+)$", out, re.MULTILINE)[1]
    lines = (tmp_path / listed).read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"a.jsonl, line 51 (byte {len(rows):,})",
        f"a.jsonl, line 102 (byte {2 * len(rows) + 7:,})",
    ]


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
