"""GPTConfig refuses contradictory values, and a preset has those of its file."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

import gptmini
from gptmini.model import GPTConfig
from gptmini.settings import first_error
from sizes import GPT2 as LEARNED

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


@pytest.mark.slow
def test_a_configuration_needs_no_torch():
    probe = (
        "import sys; from gptmini.model import ModelSettings; from gptmini.optim import "
        "AdamWSettings, CosineSchedule; from gptmini.loading import OfModelSettings; "
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", probe]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"


def test_a_preset_has_the_values_of_its_file_over_those_of_the_file_that_it_names():
    tiny = gptmini.preset("tiny", vocab_size=256, n_layers=6)
    assert (tiny.vocab_size, tiny.n_layers) == (256, 6)
    assert (tiny.d_model, tiny.n_heads, tiny.context_length) == (128, 4, 128)  # of tiny.yaml
    assert (tiny.mlp, tiny.rotary_base, tiny.qk_norm) == ("relu2", 10000.0, True)  # of modern.yaml

    gpt2 = gptmini.preset("gpt2", vocab_size=50257)
    assert (gpt2.d_model, gpt2.position, gpt2.tie_embeddings) == (768, "learned", True)
