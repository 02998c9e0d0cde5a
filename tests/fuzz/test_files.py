"""Broken files of every kind that gptmini reads are refused in one line, or read correctly."""

import json
from dataclasses import MISSING, asdict, fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gptmini
from fuzz.inputs import JUNK, PICKLED, broken, fuzz, outcome, same
from fuzz.model_folders import MODELS, TEXT, coder_of, write_model
from gptmini import tokenizer
from gptmini.checkpoint.file import header
from gptmini.loading import source_of
from gptmini.model import GPTConfig, new_gpt
from gptmini.tokenizer import chat_encoder_of
from sizes import TALKATIVE
from toys import documents_of, lines

pytestmark = pytest.mark.slow  # together they take half a minute

# Small, because it is written and read hundreds of times. Optional fields have their defaults, so a configuration
# without such a field means the same.
CONFIG = GPTConfig(**TALKATIVE | {"context_length": 5, "d_model": 4, "n_layers": 1, "n_heads": 2})
DEFAULTS = {
    field.name: field.default for field in fields(GPTConfig) if field.default is not MISSING
}
CHECKPOINT = {
    "gptmini": header(
        CONFIG, tokenizer.CharTokenizer("abcdefghijk", end_of_text=False).to_dict(), step=7
    ),
    "state_dict": {
        f"model.{name}": tensor for name, tensor in new_gpt(CONFIG, seed=1).state_dict().items()
    },
}


def load(path):
    """Return weights, configuration and tokenizer of a checkpoint, after a forward pass."""
    model, tokens = gptmini.load(path)
    model(torch.tensor([[3, 1, 4]]))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return weights, asdict(model.config), tokens.to_dict()


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return the path of a checkpoint in the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "best.ckpt"


@fuzz(150)
@given(contents=broken(CHECKPOINT, PICKLED))
def test_a_checkpoint_that_claims_junk_is_refused_or_gives_the_same_weights(path, contents):
    torch.save(contents, path)
    if loaded := outcome(load, path):
        claimed = DEFAULTS | contents["gptmini"]["config"]  # a field may be missing
        # pydantic accepts an integer, or a tensor with one number, as a float.
        for name, value in loaded[1].items():
            if isinstance(value, float):
                claimed[name] = float(claimed[name])
        whole = (CHECKPOINT["state_dict"], claimed, contents["gptmini"]["tokenizer"])
        assert same(loaded, whole)


TOKENIZERS = [
    tokenizer.CharTokenizer("abc", end_of_text=True).to_dict(),
    tokenizer.bpe(documents_of([lines(40)]), vocab_size=270).to_dict(),
    coder_of("llama").to_dict(),
]
FIELDS = [*PICKLED, "eA==", "eHg", "é", "aba", "ab\ud800", r"\S", r"[\s\S]"]


@fuzz(150)
@given(state=st.one_of([broken(state, FIELDS) for state in TOKENIZERS]) | st.sampled_from(FIELDS))
def test_a_tokenizer_of_junk_is_refused_or_encodes_without_loss(state):
    if made := outcome(tokenizer.from_dict, state):
        text = state["characters"] if made.kind == "char" else "a cab, é \n<|endoftext|>"
        assert made.decode(made.encode(text)) == text


def in_json(tree):
    """Return the tree as JSON bytes. Infinity becomes 1e400, a number that overflows."""
    return json.dumps(tree).replace("Infinity", "1e400").encode()


class ModelFile:
    """A JSON file of a model folder, or a safetensors file, which starts with a JSON header."""

    def __init__(self, path):
        self.path = path
        self.content = path.read_bytes()
        n_before = 8 if path.suffix == ".safetensors" else 0  # safetensors: length of the header
        n_json = int.from_bytes(self.content[:n_before], "little") or len(self.content)
        self.tree = json.loads(self.content[n_before:][:n_json])
        self.rest = self.content[n_before:][n_json:]

    def __repr__(self):
        return self.path.name

    def write(self, tree):
        text = in_json(tree)
        length = len(text).to_bytes(8, "little") if self.path.suffix == ".safetensors" else b""
        self.path.write_bytes(length + text + self.rest)


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    """Return the files of one folder per model type."""
    files = {}
    for kind in MODELS:
        folder = tmp_path_factory.mktemp("models") / kind
        write_model(folder, kind)
        files[kind] = [
            ModelFile(path)
            for path in sorted(folder.iterdir())
            if path.suffix in (".json", ".safetensors")
        ]
    return files


def use(folder):
    """Read a model folder and use it as the commands do."""
    source = source_of(folder)
    model, coder = source.model(), source.tokenizer
    model(torch.tensor([[1]]))
    coder.decode(range(coder.n_vocab))
    assert len(coder.byte_lengths()) == model.config.vocab_size
    outcome(coder.encode, TEXT)
    if getattr(coder, "chat", None):
        outcome(chat_encoder_of(coder).encode, [{"role": "user", "content": TEXT}])
    return True


@fuzz(300)
@given(data=st.data())
def test_a_models_folder_with_junk_in_a_file_is_read_or_refused_by_name(model_files, data):
    file = data.draw(st.sampled_from(model_files[data.draw(st.sampled_from([*MODELS]))]))
    file.write(data.draw(broken(file.tree, JUNK)))
    # If the weights do not fit the model, any file or the index may be the cause, so the error names the folder.
    named = file.path.parent if "safetensors" in file.path.name else file.path
    try:
        outcome(use, file.path.parent, names=str(named))
    finally:
        file.path.write_bytes(file.content)
