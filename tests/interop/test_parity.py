"""Both presets compute the same as Hugging Face's models at tiny random sizes, in both directions."""

import os

import pytest
import torch

from gptmini.interop.hugging_face import to_hugging_face
from gptmini.model import GPT, GPTConfig
from gptmini.system.errors import UserError
from sizes import GPT2, MODERN, F, G
from toys import from_hugging_face, wide_gpt

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip(
    "transformers", reason="parity is measured against transformers, a dev dependency"
)

UNCAPPED = MODERN | {"n_kv_heads": G, "d_ff": F, "logit_softcap": None}
VARIANTS = {
    "gpt2": ("gpt2", GPT2),
    "nanochat": ("nanochat", MODERN | {"n_kv_heads": G}),
    "gpt2 untied": ("gpt2", GPT2 | {"tie_embeddings": False}),
    "gpt2 without biases": ("gpt2", GPT2 | {"bias": False, "d_ff": F}),
    "gpt2 with the exact GELU": ("gpt2", GPT2 | {"mlp": "gelu_exact"}),
    "nanochat tied": ("nanochat", MODERN | {"tie_embeddings": True}),
    "nanochat without a cap": ("nanochat", UNCAPPED),
}


def in_transformers(config, state):
    """Return the model of transformers; its weights must be exactly those of the state."""
    names = {"gpt2": "GPT2", "nanochat": "NanoChat"}
    options = dict(config)
    kind = names[options.pop("model_type")]
    (class_name,) = options.pop("architectures")
    theirs = getattr(transformers, class_name)(getattr(transformers, f"{kind}Config")(**options))
    theirs.load_state_dict(state, strict=not config["tie_word_embeddings"])
    return theirs.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_hugging_face_both_ways(variant):
    kind, arguments = VARIANTS[variant]
    ours = wide_gpt(arguments | {"n_layers": 3}).eval()
    config, state = to_hugging_face(ours)
    assert config["model_type"] == kind  # the type that most programs know
    theirs = in_transformers(config, state)
    back = from_hugging_face(theirs.config.to_dict(), theirs.state_dict()).eval()

    tokens = torch.randint(11, (2, 13))
    with torch.no_grad():
        expected = ours(tokens)
        assert expected.abs().max() > 1
        torch.testing.assert_close(theirs(tokens).logits, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(back(tokens), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (GPT2, {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.0}),
        (MODERN, {"attention_dropout": 0.0}),
    ],
)
def test_dropout_is_exported_for_all_places_except_attention(arguments, expected):
    config, _ = to_hugging_face(wide_gpt(arguments | {"dropout": 0.3}))
    assert config.items() >= expected.items()


@pytest.mark.parametrize("variant", ["gpt2", "nanochat"])
def test_attention_weights_equal_hugging_face_layer_by_layer(variant):
    ours = wide_gpt(VARIANTS[variant][1] | {"n_layers": 3}).eval()
    theirs = in_transformers(*to_hugging_face(ours))
    theirs.set_attn_implementation("eager")  # only this implementation returns them
    tokens = torch.randint(11, (2, 7))
    expected = theirs(tokens, output_attentions=True).attentions
    expected = torch.stack([expected[i] for i in (2, 0, 1)])
    got = ours.attention_weights(tokens, [2, 0, -2])

    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert not got.requires_grad


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        (GPT2, {"activation_function": "relu"}, "activation_function must be gelu_new or gelu to"),
        (MODERN, {"rope_scaling": {"factor": 2}}, "rope_scaling must be None to .*nanochat"),
        (
            MODERN,
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}},
            "rope_type must be default .*'factor': 4.0",
        ),
        (MODERN, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial"),
    ],
)
def test_a_setting_that_gpt_does_not_compute_is_refused(arguments, changes, said):
    config, state = to_hugging_face(GPT(GPTConfig(**arguments)))
    with pytest.raises(UserError, match=f"^{said}"):
        from_hugging_face(config | changes, state)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (GPT2 | {"qk_norm": True}, None, "qk_norm must be False to export as gpt2, got qk_norm=Tr"),
        (MODERN | {"mlp": "gelu"}, None, "mlp must be relu2 to export as nanochat, got mlp=gelu"),
        (MODERN | {"mlp_smear": 2}, None, "mlp_smear must be 0 to export as nanochat, got mlp_sme"),
        (MODERN, "bert", "model_type must be one of gpt2, llama, .*, got 'bert'"),
    ],
)
def test_a_model_that_no_type_computes_is_refused_by_the_differing_setting(arguments, kind, said):
    with pytest.raises(UserError, match=said):
        to_hugging_face(GPT(GPTConfig(**arguments)), kind=kind)
