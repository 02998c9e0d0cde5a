"""Models of the hub by name: which files of a repository are downloaded, by the filter of the hub's own client."""

import shutil

import huggingface_hub
import pytest
from huggingface_hub.utils import filter_repo_objects

import gptmini
from gptmini.interop import write_folder
from gptmini.loading import local_path
from gptmini.tokenizer import LibraryTokenizer, chat_encoder_of
from interop.library_tokenizers import learned
from sizes import LLAMA
from toys import wide_gpt

NAME = "someone/tiny-llama"
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
# Other files of repositories that no import reads: weights for other programs and in other precisions.
OTHERS = (
    "consolidated.safetensors",
    "onnx/model.safetensors",
    "model.fp16.safetensors",
    "pytorch_model.bin",
    "tokenizer.model",
    "original/params.json",
    "custom_code.py",
)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository that the hub's client downloads from a local folder, and the path of the download.

    The weights are split into parts, and the chat template is a separate file.
    """
    folder = tmp_path / "hub"
    coder = learned("the cat sat on 12 mats", special=["<s>", "</s>"])
    tokenizer = LibraryTokenizer(coder.to_str(), n_vocab=coder.get_vocab_size(), end_of_text=1)
    settings = LLAMA | {"attention_bias": None, "vocab_size": tokenizer.n_vocab}
    monkeypatch.setattr("gptmini.interop.folder.LARGEST_FILE", "20KB")
    write_folder(folder, wide_gpt(settings).eval(), tokenizer, sampling={})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()

    cache = tmp_path / "cache"

    def snapshot_download(name, *, allow_patterns):
        assert name == NAME
        files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
        for file in filter_repo_objects(files, allow_patterns=allow_patterns):
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / file, cache / file)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return folder, cache


def test_a_name_on_the_hub_gives_the_model_of_the_whole_repository(repository):
    folder, cache = repository
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    model, tokenizer = gptmini.load(local_path(NAME))
    expected, tokenizer_of_all = gptmini.load(folder)
    assert tokenizer.to_dict() == tokenizer_of_all.to_dict()
    assert tokenizer.chat["chat_template"] == TEMPLATE
    chat = [{"role": "user", "content": "cat"}]
    ids, _ = chat_encoder_of(tokenizer).encode(chat)
    assert tokenizer.decode(ids.tolist()) == "<s>user: cat</s>"
    for name, weight in expected.state_dict().items():
        assert weight.equal(model.state_dict()[name])

    left_out = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    left_out -= {str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file()}
    assert left_out == {*OTHERS, "README.md"}
