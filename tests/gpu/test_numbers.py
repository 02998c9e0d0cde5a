"""A GPU computes what the CPU computes, in every precision, compiled or not: pytest -m gpu."""

import copy

import lightning as L
import pytest
import torch

from gptmini.generation import Decoder, Rules
from gptmini.model import training_loss
from gptmini.tokenizer import byte
from gptmini.training.monitoring.samples import Samples
from gpu.parts import KINDS, TRY_ON_CPU, Losses, drawn, model_of

pytestmark = pytest.mark.gpu


@KINDS
def test_logits_and_gradients_equal_the_cpus(device, kind):
    on_cpu = model_of(kind)
    on_gpu = copy.deepcopy(on_cpu).to(device)
    tokens = drawn(on_cpu)
    logits = on_cpu(tokens[:, :-1])

    torch.testing.assert_close(on_gpu(tokens[:, :-1].to(device)).cpu(), logits, atol=1e-4, rtol=0)

    training_loss(on_cpu, tokens[:, :-1], tokens[:, 1:]).backward()
    training_loss(on_gpu, tokens[:, :-1].to(device), tokens[:, 1:].to(device)).backward()
    for (name, ours), theirs in zip(on_gpu.named_parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad.cpu(), theirs.grad, atol=1e-4, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )


@KINDS
@pytest.mark.parametrize("precision", ["bf16", "bf16_stream"])
def test_bf16_trains_as_well_as_fp32(run, kind, precision):
    steps = 6 if TRY_ON_CPU else 60
    options = {"max_steps": steps, "val_every_steps": steps}
    means = {}
    spread = 0.0

    for name in ("fp32", precision):
        losses = [
            run(kind, seed=seed, precision=name, **options).lightning_module.evaluation.loss
            for seed in (1, 2, 3)
        ]
        means[name] = sum(losses) / 3
        spread = spread or max(losses) - min(losses)

    print(
        f"mean of three seeds {means[precision]:.4f}, in fp32 {means['fp32']:.4f}, its seeds {spread:.4f} apart"
    )

    assert abs(means[precision] - means["fp32"]) <= spread / 2


@KINDS
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_on_the_gpu_is_that_of_the_cpu(run, kind, optimizer):
    evaluations = [
        run(kind, optimizer=optimizer, max_steps=6, **options).lightning_module.evaluation.loss
        for options in ({"device": "cpu"}, {})
    ]

    # On a GPU that computes in bfloat16 Muon orthogonalizes in it, which moves a loss of about 5 in its third digit.
    assert evaluations[1] == pytest.approx(
        evaluations[0], abs=1e-3 if optimizer == "adamw" else 0.05
    )


@KINDS
@pytest.mark.parametrize("precision", ["fp32", "bf16_stream"])
def test_compiled_equals_eager(run, kind, precision):
    eager = Losses()
    compiled = Losses()
    run(kind, precision=precision, callbacks=[eager])
    run(kind, precision=precision, callbacks=[compiled], compile=True)
    assert compiled.of == pytest.approx(eager.of, abs=1e-4 if precision == "fp32" else 0.05)


def test_the_loss_is_compiled_once_whatever_validation_and_samples_do(run):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    samples = Samples(byte([]), prompts=["fox"], seed=1, max_new_tokens=3)
    run(compile=True, precision="bf16", max_steps=5, val_every_steps=2, callbacks=[samples])

    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@KINDS
def test_a_compiled_decoder_draws_the_ids_of_the_eager_one(device, kind):
    model = model_of(kind).to(device).eval()
    ids = []
    for compile in (False, True):
        rules = Rules(max_new_tokens=20, temperature=0.8, top_k=50)
        decoder = Decoder(
            model, [[1, 2, 3], [4, 5]], rules, streams=[0, 1], batch_size=2, compile=compile
        )
        ids.append([[token for _, token, _ in decoder.draw()] for _ in range(20)])

    assert ids[0] == ids[1]


class Agreeing(L.Callback):
    """Has the one rank agree with itself in every step, as several do."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        module.not_finite = torch.zeros((), device=module.device)
        module.stop_request = lambda: (15, True)
        module._agree()
        assert module.not_finite.item() == 0
        assert module._request.tolist() == [15, 1]
        module.stop_request = lambda: (0, False)


def test_one_rank_of_ddp_equals_none(run, monkeypatch):
    plain = Losses()
    one_rank = Losses()
    run(callbacks=[plain])
    trainer = L.Trainer

    def with_ddp(**options):
        return trainer(strategy="ddp", **options)

    monkeypatch.setattr("gptmini.training.trainer.Trainer", with_ddp)
    try:
        run(callbacks=[one_rank, Agreeing()])
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    assert one_rank.of == pytest.approx(plain.of, abs=1e-5)
