"""GPTConfig refuses contradictory values, and its defaults change nothing."""

import subprocess
import sys
from dataclasses import asdict, fields
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from gptmini.model import GPTConfig, ModelSettings, new_gpt
from gptmini.model.layers import ACTIVATION
from gptmini.settings import first_error
from refusals import refused_keys
from sizes import GPT2 as LEARNED
from sizes import C, D, H

ROTARY = LEARNED | {"position": "rotary", "rotary_base": 100.0}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (LEARNED | {"d_model": 100, "n_heads": 12}, "d_model=100 n_heads=12"),
        (LEARNED | {"n_kv_heads": 4}, "n_heads=6 n_kv_heads=4"),
        (LEARNED | {"position": "rotary"}, "position=rotary rotary_base=None"),
        (LEARNED | {"rotary_base": 100.0}, "position=learned rotary_base=100.0"),
        (ROTARY | {"d_model": 18}, "position=rotary d_head=3"),
        (ROTARY | {"context_length": 2**24 + 1}, "67108864 context_length=16777217 d_head=4"),
        (LEARNED | {"full_context_length": 20}, "full_context_length=20 position=learned"),
        (ROTARY | {"full_context_length": 12}, "full_context_length=12 context_length=13"),
        (
            ROTARY | {"rotary_scaling": {"factor": 8.0, "low_freq_factor": 1.0}},
            "original_context_length low_freq_factor",
        ),
    ],
)
def test_values_at_odds_are_refused(settings, named):
    with pytest.raises(ValidationError) as caught:
        GPTConfig(**settings)
    message = first_error(caught.value)
    assert all(word in message for word in named.split())


def test_the_activations_are_those_that_layers_have():
    (field,) = (field for field in fields(ModelSettings) if field.name == "mlp")
    assert get_args(field.type) == tuple(ACTIVATION)


@pytest.mark.slow
def test_a_configuration_needs_no_torch():
    probe = (
        "import sys; from gptmini.model import ModelSettings; from gptmini.optim import "
        "AdamWSettings, CosineSchedule; from gptmini.loading import OfModelSettings; "
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", probe]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"


def test_what_is_not_neutral_has_no_default():
    assert refused_keys(GPTConfig) == set(LEARNED)


def test_settings_and_a_vocabulary_are_a_config():
    settings = {key: value for key, value in ROTARY.items() if key != "vocab_size"}
    config = ModelSettings(**settings).with_vocab_size(11)
    assert config == GPTConfig(**ROTARY)
    assert GPTConfig(**asdict(config)) == config


def test_equal_settings_have_equal_hashes_also_with_rotary_scaling():
    scaled = ROTARY | {"rotary_scaling": {"factor": 8.0}}
    twice = {GPTConfig(**scaled): 1, GPTConfig(**scaled): 2}
    assert list(twice.values()) == [2]
    assert GPTConfig(**ROTARY) not in twice


@pytest.mark.parametrize("base", [LEARNED, ROTARY])
def test_defaults_are_neutral(base):
    written_out = base | {
        "n_kv_heads": H,
        "d_head": D,
        "d_ff": 4 * C,
        "attention_bias": base["bias"],
        "norm_gain": False,
        "norm_eps": 1e-5,
        "rotary_scaling": None,
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
        {"d_head": 6},
        {"norm_eps": 0.5},
        {"qk_norm": "gain"},
        {"rotary_scaling": {"factor": 8.0}},
        {"mlp": "swiglu"},
    ],
)
def test_leaving_a_default_changes_the_model(change):
    plain = new_gpt(GPTConfig(**ROTARY), seed=0)
    changed = new_gpt(GPTConfig(**ROTARY | change), seed=0)
    tokens = torch.arange(11).unsqueeze(0)  # (1, 11)

    assert not torch.allclose(plain(tokens), changed(tokens), atol=1e-5, rtol=0)
