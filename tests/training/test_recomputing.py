"""Activations that are computed again train the same weights, and blocks are computed twice for it."""

import torch


def test_blocks_are_computed_again_in_the_backward_pass_and_weights_are_the_same(train, tmp_path):
    calls = []

    def watch(module):
        calls.clear()
        attention = module.model.blocks[0].attention
        attention.register_forward_hook(
            lambda *call: calls.append(torch.is_grad_enabled()) if module.training else None
        )

    options = {"kind": "modern", "dropout": 0.1, "watch": watch}
    kept = train(folder=tmp_path / "kept", **options)
    n_kept = calls.count(True)
    again = train(folder=tmp_path / "again", checkpoint_activations=True, **options)
    assert calls.count(True) == 2 * n_kept > 0

    expected = kept.lightning_module.model.state_dict()
    for name, weight in again.lightning_module.model.state_dict().items():
        assert torch.equal(weight, expected[name])
