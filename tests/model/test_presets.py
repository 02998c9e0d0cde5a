"""gptmini.preset gives the model configurations of the command line."""

import pytest

import gptmini


def test_a_preset_has_the_values_of_its_file_over_those_of_the_file_that_it_names():
    tiny = gptmini.preset("tiny", vocab_size=256, n_layers=6)
    assert (tiny.vocab_size, tiny.n_layers) == (256, 6)
    assert (tiny.d_model, tiny.n_heads, tiny.context_length) == (128, 4, 128)  # of tiny.yaml
    assert (tiny.mlp, tiny.rotary_base, tiny.qk_norm) == ("relu2", 10000.0, True)  # of modern.yaml

    gpt2 = gptmini.preset("gpt2", vocab_size=50257)
    assert (gpt2.d_model, gpt2.position, gpt2.tie_embeddings) == (768, "learned", True)


def test_an_unknown_preset_or_field_is_refused():
    with pytest.raises(
        gptmini.UserError, match="gpt2, llama, llama_tiny, modern, qwen_tiny, tiny, xl, got 'small'"
    ):
        gptmini.preset("small", vocab_size=256)
    with pytest.raises(ValueError, match="d_modle"):
        gptmini.preset("tiny", vocab_size=256, d_modle=24)
