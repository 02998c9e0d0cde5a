"""nanoGPT's checkpoint: the logits equal those of transformers' GPT-2, and damaged files are refused."""

import os
import pickle
import resource

import pytest
import torch

from gptmini.interop import read_nanogpt
from gptmini.system.errors import UserError
from interop.nanogpt_files import write_nanogpt
from tokenizer.texts import tokenizer_of_gpt2

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
CHARACTERS = "\n !abc\u00e9"


def in_transformers(model):
    """Return transformers' GPT-2 with weights of nanoGPT; nanoGPT's README compares the two in the same way."""
    n_ids, width = model["transformer.wte.weight"].shape
    config = transformers.GPT2Config(
        vocab_size=n_ids,
        n_positions=13,
        n_embd=width,
        n_layer=2,
        n_head=6,
        activation_function="gelu",  # the exact form, torch's own nn.GELU()
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    state = {name: torch.zeros_like(weight) for name, weight in theirs.state_dict().items()}
    for name, weight in model.items():
        is_conv1d = name.startswith("transformer.h.") and weight.ndim == 2
        state[name] = weight.T if is_conv1d else weight
    theirs.load_state_dict(state)
    return theirs


@pytest.mark.parametrize(("bias", "is_compiled"), [(False, True), (True, False)])
def test_a_checkpoint_of_characters_gives_the_logits_of_transformers(tmp_path, bias, is_compiled):
    weights = write_nanogpt(tmp_path, CHARACTERS, bias=bias, is_compiled=is_compiled)
    model, tokenizer = read_nanogpt(tmp_path / "ckpt.pt", tmp_path / "meta.pkl")
    assert tokenizer.encode("a b\u00e9") == [
        CHARACTERS.index(character) for character in "a b\u00e9"
    ]

    tokens = torch.randint(len(CHARACTERS), (2, 13))
    with torch.no_grad():
        expected = in_transformers(weights)(tokens).logits
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab_size", [50257, 50304])
def test_ids_of_gpt2_are_known_by_their_number(tmp_path, vocab_size):
    tokenizer_of_gpt2()
    weights = write_nanogpt(tmp_path, vocab_size=vocab_size)
    model, tokenizer = read_nanogpt(tmp_path / "ckpt.pt")
    assert (model.config.vocab_size, tokenizer.n_vocab) == (50257, 50257)

    tokens = torch.tensor([tokenizer.encode("Hello, world!")])
    with torch.no_grad():
        expected = in_transformers(weights)(tokens).logits[..., :50257]
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-5)


class Evil:
    """Runs code when it is unpickled as usual."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def change(**changes):
    """Return a function that replaces entries of the checkpoint."""

    def apply(folder):
        checkpoint = torch.load(folder / "ckpt.pt", weights_only=True)
        torch.save(checkpoint | changes, folder / "ckpt.pt")

    return apply


def change_model(**changes):
    """Return a function that replaces weights of the checkpoint; two underscores stand for a dot."""

    def apply(folder):
        checkpoint = torch.load(folder / "ckpt.pt", weights_only=True)
        named = {name.replace("__", "."): value for name, value in changes.items()}
        kept = {
            name: value for name, value in (checkpoint["model"] | named).items() if value is not ...
        }
        torch.save(checkpoint | {"model": kept}, folder / "ckpt.pt")

    return apply


def meta(content):
    """Return a function that replaces meta.pkl."""
    return lambda folder: (folder / "meta.pkl").write_bytes(content)


SIZES = {"vocab_size": 7, "block_size": 13, "n_layer": 2, "n_head": 6, "bias": True}
NO_ENTRIES = r"ckpt\.pt must have .* 'model' and 'model_args'"
NO_META = r"meta\.pkl must be nanoGPT's meta\.pkl"
REFUSED = [
    (change(model=Evil()), r"ckpt\.pt must contain only tensors and plain values"),
    (change(model_args={"n_layer": 1}), NO_ENTRIES),
    (change(model_args=SIZES | {"n_embd": "x"}), r"ckpt\.pt, model_args: d_model: .*, got 'x'"),
    (change_model(transformer__ln_f__weight=...), r"missing weights: transformer\.ln_f\.weight; "),
    (change_model(transformer__ln_f__weight=torch.ones(1).expand(24)), "only dense tensors"),
    (change_model(transformer__wte__weight=torch.tensor(1.0)), NO_ENTRIES),
    (change_model(transformer__ln_f__weight=torch.ones(2)), "shapes .* match the config: "),
    (meta(pickle.dumps(Evil())), rf"{NO_META} .* got \S"),
    (
        meta(pickle.dumps({"itos": dict.fromkeys(range(7), "ab")})),
        "each id must stand for one char",
    ),
    (meta(pickle.dumps({"itos": dict.fromkeys(range(7), 3)})), NO_META),
    (meta(b"\x80\x02Nr\xff\xff\xff\x7f."), rf"{NO_META} .*memo index 21474"),
    (meta(pickle.dumps({"itos": {0: "a"}})), "has 7 ids, but .* has 1 .*; .* --meta"),
]


def test_one_long_text_for_every_id_takes_no_memory(tmp_path):
    write_nanogpt(tmp_path, CHARACTERS)
    text = "x" * 75_000
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": [text] * 37_500}))
    assert (tmp_path / "meta.pkl").stat().st_size < 151_000  # and 2.8 GB, if the texts were joined
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"meta\.pkl must be nanoGPT's meta\.pkl"):
        read_nanogpt(tmp_path / "ckpt.pt", tmp_path / "meta.pkl")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


@pytest.mark.parametrize(("damage", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_none_of_nanogpt_is_refused_and_nothing_runs(tmp_path, monkeypatch, damage, said):
    monkeypatch.chdir(tmp_path)
    write_nanogpt(tmp_path, CHARACTERS)
    damage(tmp_path)
    with pytest.raises(UserError, match=said):
        read_nanogpt(tmp_path / "ckpt.pt", tmp_path / "meta.pkl")
    assert not (tmp_path / "ran").exists()
