"""gptmini export and import, and the programs that read the exported files."""

import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file

import gptmini
from gptmini.commands.export import DTYPES, KINDS
from gptmini.configuration.building import build_settings
from gptmini.configuration.compose import compose
from gptmini.interop import ARCHITECTURES, folder, gguf_file
from gptmini.interop.architectures import choose_architecture
from interop.nanogpt_files import write_nanogpt

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def test_the_model_of_the_default_run_is_exported_as_qwen_3():
    plain = compose("train", []).plain()
    model = build_settings(plain).model.with_vocab_size(300)
    assert choose_architecture(model) == "qwen3"


def test_a_run_is_exported_sampled_imported_and_evaluated(script, trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    result = script("export", "runs/latest", "out")
    assert re.match(r"out, NanoChatForCausalLM in fp32: [\d,]+ parameters, [\d.]+ kB\n", result.out)

    n_tokens = ("--max-tokens", "64")
    evaluated = script("evaluate", "runs/latest", *n_tokens).out
    loss = re.search(r"^loss +(\S+)", evaluated, re.MULTILINE)[1]

    model, tokenizer = gptmini.load("out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained("out").eval()
    tokens = torch.tensor([tokenizer.encode("Some text")[: model.config.context_length]])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=1e-5, rtol=1e-5)

    options = ("--prompt", "So", "--seed", "3", "--max-new-tokens", "9")
    assert script("sample", "out", *options).out == script("sample", "runs/latest", *options).out

    assert script("import", "out", "runs/imported").out.startswith("runs/imported, ")
    (folder,) = (path.parent for path in (tmp_path / "data").glob("*/meta.json"))
    again = script("evaluate", "runs/imported", "--data", str(folder), *n_tokens).out
    assert re.search(r"^loss +(\S+)", again, re.MULTILINE)[1] == loss

    # An imported model is a run that has not trained.
    assert re.search(r"^runs/imported +done +0 of 0 +init_from=out$", script("runs").out, re.M)
    assert script("report", "runs/imported").code == 0
    assert "model.d_model" in (tmp_path / "runs" / "imported" / "report.html").read_text()
    script("train", "resume=runs/imported").assert_refused("init_from=runs/imported")


def test_a_checkpoint_of_nanogpt_is_imported_and_sampled(script, tmp_path):
    write_nanogpt(tmp_path, "\n abcde")
    assert script("import", "ckpt.pt", "runs/nano", "--meta", "meta.pkl").code == 0
    sampled = script("sample", "runs/nano", "--prompt", "abc", "--max-new-tokens", "5")
    assert sampled.code == 0
    assert sampled.out.startswith("abc")


def test_forms_of_llama_are_chosen_by_name_and_written_for_llama_cpp(script, short, tmp_path):
    gguf = pytest.importorskip("gguf")
    assert script("train", *short, "model=llama_tiny", "model.d_ff=64").code == 0
    chosen = ("--as", "mistral", "--dtype", "bf16")
    assert script("export", "runs/latest", "out", *chosen).code == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("mistral", "bfloat16")
    weights = load_file(tmp_path / "out" / "model.safetensors").values()
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert gptmini.load(tmp_path / "out")[0].embedding.weight.dtype == torch.float32

    types = []
    for dtype in ("fp32", "q8_0"):
        assert script("export", "runs/latest", f"{dtype}.gguf", "--dtype", dtype).code == 0
        reader = gguf.GGUFReader(tmp_path / f"{dtype}.gguf")
        assert reader.get_field("general.architecture").contents() == "llama"
        (down,) = (t for t in reader.tensors if t.name == "blk.0.ffn_down.weight")
        types.append(down.tensor_type.name)
    assert types == ["F32", "Q8_0"]


def test_the_command_names_the_model_types_that_there_are():
    assert set(KINDS) == set(ARCHITECTURES)
    assert {*DTYPES[""], *DTYPES[".gguf"]} == {*folder.DTYPES, *gguf_file.DTYPES}


def test_a_page_is_written_in_int8_and_keeps_the_name_of_the_run(script, short, tmp_path):
    assert script("train", *short, "tokenizer=byte").code == 0
    said = script("export", "runs/latest", "model.html")
    assert said.out.startswith("model.html, a page in int8: ")
    page = (tmp_path / "model.html").read_text(encoding="utf-8")
    assert '"described": {"model": "latest", "chats": false' in page
    script("export", "runs/latest", "model.html").assert_refused("model.html already exists")
    script("export", "runs/latest", "other.html", "--dtype", "fp16").assert_refused(
        "a folder or a .gguf file"
    )
