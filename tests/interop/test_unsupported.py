"""Every command that reads a model rejects peft adapters and GGUF files with a clear message."""

import json

import pytest

import gptmini
from gptmini.interop.unsupported import check_is_supported
from gptmini.loading import find_source
from gptmini.user_error import UserError


@pytest.fixture
def adapter(tmp_path):
    """A folder like those that peft writes."""
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (tmp_path / "lora" / "adapter_model.safetensors").touch()
    return tmp_path / "lora"


@pytest.mark.parametrize("read", [gptmini.load, find_source])
def test_an_adapter_is_to_be_merged_into_its_base(adapter, read):
    with pytest.raises(UserError, match=r"lora is a LoRA .*merge_and_unload\(\)"):
        read(adapter)
    # The folder of a complete model may also contain the adapter that was merged into it.
    (adapter / "model.safetensors").touch()
    check_is_supported(adapter)


@pytest.mark.parametrize("run", ["config.yaml", "checkpoints", "2026-01-01_00-00-00/config.yaml"])
def test_a_gguf_file_beside_a_run_does_not_hide_it(tmp_path, run):
    (tmp_path / "exported.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (tmp_path / run).mkdir(parents=True)
    check_is_supported(tmp_path)


@pytest.mark.parametrize("read", [gptmini.load, find_source])
@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_gguf_file_is_known_by_its_content(tmp_path, read, named):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(UserError, match=r"m\.gguf is a GGUF file, .*gguf_file='m\.gguf'"):
        read(file if named == "file" else tmp_path)
    file.write_bytes(b"nothing")
    check_is_supported(tmp_path)
