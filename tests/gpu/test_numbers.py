"""A GPU computes the same as the CPU, in every precision, compiled or not. Run with pytest -m gpu."""

import copy

import lightning as L
import pytest
import torch

from gptmini.generation import CompiledSession, Request, Rules, Session
from gptmini.model import training_loss
from gptmini.tokenizer import CharTokenizer
from gpu.parts import KINDS, OPTIMIZERS, TRY_ON_CPU, drawn, model_of
from training.watchers import Figures

pytestmark = pytest.mark.gpu


@KINDS
def test_logits_and_gradients_equal_the_cpus(device, kind):
    on_cpu = model_of(kind)
    on_gpu = copy.deepcopy(on_cpu).to(device)
    ids = drawn(on_cpu)
    tokens = ids[:, :-1]
    targets = ids[:, 1:]

    expected = on_cpu(tokens)
    logits = on_gpu(tokens.to(device)).cpu()
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)

    training_loss(on_cpu, tokens, targets).backward()
    training_loss(on_gpu, tokens.to(device), targets.to(device)).backward()
    for name, parameter in on_cpu.named_parameters():
        gradient = on_gpu.get_parameter(name).grad.cpu()
        torch.testing.assert_close(
            gradient, parameter.grad, atol=1e-4, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )


@KINDS
@pytest.mark.parametrize("precision", ["bf16", "bf16_stream"])
def test_bf16_trains_as_well_as_fp32(run, kind, precision):
    steps = 3 if TRY_ON_CPU else 30

    def losses(precision):
        trainers = []
        for seed in (1, 2, 3):
            trainers.append(
                run(
                    kind,
                    precision=precision,
                    optimizer="slow adamw",
                    max_steps=steps,
                    val_every_steps=steps,
                    seed=seed,
                )
            )
        return [trainer.lightning_module.evaluation.loss for trainer in trainers]

    # Compare seed by seed, because seeds differ by 0.1. On a CPU, bf16 changed these losses by at most 0.002.
    pairs = zip(losses("fp32"), losses(precision), strict=True)
    apart = max(abs(expected - loss) for expected, loss in pairs)

    print(f"losses are at most {apart:.4f} apart")
    assert apart <= 0.02


@KINDS
@OPTIMIZERS
def test_a_run_on_the_gpu_is_that_of_the_cpu(run, kind, optimizer):
    on_cpu = run(kind, optimizer=optimizer, max_steps=6, device="cpu")
    on_gpu = run(kind, optimizer=optimizer, max_steps=6)

    # If the GPU supports bfloat16, Muon orthogonalizes in it, which changes a loss of about 5 in its third digit.
    tolerance = {"adamw": 1e-3, "muon": 0.05}[optimizer]
    expected = on_cpu.lightning_module.evaluation.loss
    assert on_gpu.lightning_module.evaluation.loss == pytest.approx(expected, abs=tolerance)


@KINDS
@pytest.mark.parametrize("precision", ["fp32", "bf16_stream"])
def test_compiled_equals_eager(run, kind, precision):
    eager = Figures()
    compiled = Figures()
    run(kind, precision=precision, callbacks=[eager])
    run(kind, precision=precision, callbacks=[compiled], compile=True)

    tolerance = {"fp32": 1e-4, "bf16_stream": 0.05}[precision]
    assert compiled.losses == pytest.approx(eager.losses, abs=tolerance)


@KINDS
def test_a_compiled_session_draws_the_ids_of_the_eager_one(device, kind):
    model = model_of(kind).to(device).eval()
    # The second row has other rules, and the third prompt takes the row of the first that ends.
    rules = [
        Rules(temperature=0.8, top_k=50, max_new_tokens=20),
        Rules(temperature=0, repetition_penalty=1.3, max_new_tokens=15),
        Rules(temperature=0.8, top_p=0.9, max_new_tokens=10),
    ]
    characters = map(chr, range(32, 32 + model.config.vocab_size))
    tokenizer = CharTokenizer("".join(characters), end_of_text=False)

    def drawn_ids(kind):
        session = kind(model, tokenizer, batch_size=2, capacity=23)
        for series, prompt in enumerate([[1, 2, 3], [4, 5], [6]]):
            session.add(Request(prompt=prompt, rules=rules[series], seed=0, series=series))
        return [(piece.sample, piece.token) for piece in session.pieces()]

    assert drawn_ids(CompiledSession) == drawn_ids(Session)


class Agreeing(L.Callback):
    """Makes the only rank agree with itself in every step, as several ranks do."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        module.not_finite = torch.zeros((), device=module.device)
        module.stop_request = lambda: (15, True)
        module._agree()
        assert module.not_finite.item() == 0
        assert module._request.tolist() == [15, 1]
        module.stop_request = lambda: (0, False)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_one_rank_of_several_equals_none(run, strategy):
    plain = Figures()
    one_rank = Figures()
    run(callbacks=[plain])

    try:
        run(strategy=strategy, callbacks=[one_rank, Agreeing()])
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    assert one_rank.losses == pytest.approx(plain.losses, abs=1e-5)
