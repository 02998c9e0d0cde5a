"""GPTConfig refuses a wrong type, a value out of range and values at odds in one sentence; defaults change nothing."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from gptmini.model import GPTConfig, new_gpt
from sizes import GPT2 as LEARNED
from sizes import C, D, H

ROTARY = LEARNED | {"position": "rotary", "rotary_base": 100.0}
COUNTS = ["vocab_size", "context_length", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff"]
OPTIONAL = ["n_kv_heads", "d_ff", "rotary_base", "attention_scale", "logit_softcap"]
NAN = float("nan")
INF = float("inf")


def refusal(settings):
    with pytest.raises(ValueError, match=r".") as caught:
        GPTConfig(**settings)
    return str(caught.value)


@pytest.mark.parametrize("value", [True, 1.0, "ninety"])
@pytest.mark.parametrize("name", [*COUNTS, "smear", "mlp_smear"])
def test_what_is_no_int_is_refused_for_a_count(name, value):
    wanted = "int or null" if name in OPTIONAL else "int"
    assert refusal(LEARNED | {name: value}) == f"{name} must be {wanted}, got {name}={value!r}"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("d_model", None, "int"),
        ("norm", 1, "str"),
        ("position", None, "str"),
        ("bias", 1, "bool"),
        ("tie_embeddings", "true", "bool"),
        ("qk_norm", None, "bool"),
        ("dropout", "0.1", "float"),
        ("dropout", True, "float"),
        ("dropout", None, "float"),
        ("rotary_base", "100", "float or null"),
        ("attention_scale", False, "float or null"),
        ("logit_softcap", [15.0], "float or null"),
    ],
)
def test_other_wrong_types_are_refused(name, value, wanted):
    assert refusal(LEARNED | {name: value}) == f"{name} must be {wanted}, got {name}={value!r}"


def test_an_int_will_do_for_a_float():
    config = GPTConfig(**ROTARY | {"rotary_base": 100, "dropout": 0, "logit_softcap": 15})
    assert (config.rotary_base, config.dropout, config.logit_softcap) == (100, 0, 15)


@pytest.mark.parametrize("value", [0, -4, 2**32 + 1])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_outside_1_to_2_to_the_32_are_refused(name, value):
    expected = f"{name} must be from 1 to 4294967296, got {name}={value}"
    assert refusal(LEARNED | {name: value}) == expected


def test_a_context_whose_table_could_not_be_made_is_refused():
    expected = (
        "context_length * d_model / n_heads must be at most 67108864 when position=rotary, "
        "got context_length=16777217, d_model=24 and n_heads=6"
    )
    assert refusal(ROTARY | {"context_length": 2**24 + 1}) == expected


@pytest.mark.parametrize("value", [0.0, -1.0, INF, NAN, 10**400])
@pytest.mark.parametrize("name", ["rotary_base", "attention_scale", "logit_softcap"])
def test_factors_that_are_not_positive_and_finite_are_refused(name, value):
    expected = f"{name} must be above 0 and finite, or null, got {name}={value}"
    assert refusal(ROTARY | {name: value}) == expected


@pytest.mark.parametrize("value", [-1, 65])
@pytest.mark.parametrize("name", ["smear", "mlp_smear"])
def test_smears_outside_0_to_64_are_refused(name, value):
    assert refusal(ROTARY | {name: value}) == f"{name} must be from 0 to 64, got {name}={value}"


@pytest.mark.parametrize("value", [-0.1, 1.0, 1, NAN])
def test_dropout_that_is_no_probability_below_one_is_refused(value):
    expected = f"dropout must be at least 0 and below 1, got dropout={value}"
    assert refusal(LEARNED | {"dropout": value}) == expected


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("norm", "layernorm, rmsnorm"),
        ("position", "learned, rotary"),
        ("mlp", "gelu, gelu_exact, relu2"),
        ("init", "gpt2, zero_projections"),
    ],
)
def test_unknown_names_are_refused_with_those_that_exist(name, names):
    expected = f"{name} must be one of {names}, got {name}='swiglu'"
    assert refusal(LEARNED | {name: "swiglu"}) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            LEARNED | {"d_model": 100, "n_heads": 12},
            "d_model must be a multiple of n_heads, got d_model=100 and n_heads=12",
        ),
        (
            LEARNED | {"n_kv_heads": 4},
            "n_heads must be a multiple of n_kv_heads, got n_heads=6 and n_kv_heads=4",
        ),
        (
            LEARNED | {"position": "rotary"},
            "rotary_base must be set when position=rotary and null otherwise, got position=rotary and rotary_base=None",
        ),
        (
            LEARNED | {"rotary_base": 100.0},
            "rotary_base must be set when position=rotary and null otherwise, "
            "got position=learned and rotary_base=100.0",
        ),
        (
            ROTARY | {"d_model": 18},
            "d_model / n_heads must be even when position=rotary, got d_model=18 and n_heads=6",
        ),
    ],
)
def test_values_at_odds_are_refused(settings, message):
    assert refusal(settings) == message


def test_an_odd_head_width_is_fine_where_nothing_rotates():
    assert GPTConfig(**LEARNED | {"d_model": 18}).d_head == 3


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_what_is_not_neutral_has_no_default(name):
    with pytest.raises(TypeError, match=f"required keyword-only argument: '{name}'"):
        GPTConfig(**{key: value for key, value in LEARNED.items() if key != name})


def test_a_misspelt_name_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'd_modle'"):
        GPTConfig(**LEARNED, d_modle=24)


def test_values_cannot_be_given_by_position():
    with pytest.raises(TypeError, match="positional"):
        GPTConfig(11)


@pytest.mark.parametrize("base", [LEARNED, ROTARY])
def test_defaults_are_neutral(base):
    written_out = base | {
        "n_kv_heads": H,
        "d_ff": 4 * C,
        "attention_scale": D**-0.5,
        "dropout": 0.0,
        "qk_norm": False,
        "embedding_norm": False,
        "logit_softcap": None,
        "smear": 0,
        "mlp_smear": 0,
    }
    short = new_gpt(GPTConfig(**base), seed=0)
    long = new_gpt(GPTConfig(**written_out), seed=0)

    torch.manual_seed(0)
    tokens = torch.randint(11, (5, 13))
    torch.testing.assert_close(short(tokens), long(tokens), atol=1e-6, rtol=0)
    torch.testing.assert_close(short.train()(tokens), short.eval()(tokens), atol=0, rtol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"n_kv_heads": 3},
        {"d_ff": 40},
        {"attention_scale": 0.7},
        {"qk_norm": True},
        {"embedding_norm": True},
    ],
)
def test_leaving_a_default_changes_the_model(change):
    plain = new_gpt(GPTConfig(**ROTARY), seed=0)
    changed = new_gpt(GPTConfig(**ROTARY | change), seed=0)
    tokens = torch.arange(11).unsqueeze(0)  # (1, 11)

    assert not torch.allclose(plain(tokens), changed(tokens), atol=1e-5, rtol=0)


def test_a_config_cannot_be_changed():
    config = GPTConfig(**LEARNED)
    with pytest.raises(FrozenInstanceError):
        config.d_model = 48


@pytest.mark.parametrize(("vocab_size", "padded"), [(1, 64), (64, 64), (65, 128), (50257, 50304)])
def test_padded_vocabulary_is_the_next_multiple_of_64(vocab_size, padded):
    assert GPTConfig(**LEARNED | {"vocab_size": vocab_size}).padded_vocab_size == padded
