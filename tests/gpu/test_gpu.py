"""What only a GPU can show: pytest -m gpu, or the part "checks" of scripts/benchmark.py gpu."""

import copy
import time
import warnings

import lightning as L
import pytest
import torch

from gptmini.generation import Decoder, Rules
from gptmini.model import GPTConfig, new_gpt, training_loss
from gptmini.run_folder import find_training_state
from gptmini.tokenizer import byte
from gptmini.training.checkpointing import RunCheckpoints
from gptmini.training.monitoring.samples import Samples
from gptmini.training.monitoring.scalars import Scalars
from gptmini.training.stopping import Stopping
from sizes import TRAINED
from tests.gpu.conftest import SIZES, TRY_ON_CPU
from tests.training.test_bad_steps import Poison, Said
from tests.training.test_resume import Kill, KillAfter, Seen

pytestmark = pytest.mark.gpu
KINDS = pytest.mark.parametrize("kind", ["gpt2", "modern"])
B = 4


def model_of(kind, **sizes):
    model = new_gpt(GPTConfig(**TRAINED[kind] | SIZES | sizes), 1)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def drawn(model):
    torch.manual_seed(2)
    return torch.randint(257, (B, model.config.context_length + 1))


class Losses(L.Callback):
    """The loss of every step, by its number."""

    def __init__(self):
        self.of = {}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.of[trainer.global_step] = module.step_loss.item()


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
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, atol=1e-4, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@KINDS
@pytest.mark.parametrize("precision", ["bf16", "bf16_stream"])
def test_bf16_trains_as_well_as_fp32(run, kind, precision):
    steps = 6 if TRY_ON_CPU else 60
    options = {"max_steps": steps, "val_every_steps": steps}
    means = {}
    spread = 0.0
    for name in ("fp32", precision):
        losses = [
            run(kind, seed=seed, precision=name, **options).lightning_module.evaluation.loss for seed in (1, 2, 3)
        ]
        means[name] = sum(losses) / 3
        spread = spread or max(losses) - min(losses)
    print(f"mean of three seeds {means[precision]:.4f}, in fp32 {means['fp32']:.4f}, its seeds {spread:.4f} apart")
    assert abs(means[precision] - means["fp32"]) <= spread / 2


@KINDS
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_on_the_gpu_is_that_of_the_cpu(run, kind, optimizer):
    evaluations = [
        run(kind, optimizer=optimizer, max_steps=6, **options).lightning_module.evaluation.loss
        for options in ({"device": "cpu"}, {})
    ]
    # On a GPU that computes in bfloat16 Muon orthogonalizes in it, which moves a loss of about 5 in its third digit.
    assert evaluations[1] == pytest.approx(evaluations[0], abs=1e-3 if optimizer == "adamw" else 0.05)


@KINDS
@pytest.mark.parametrize("precision", ["fp32", "bf16_stream"])
def test_compiled_equals_eager(run, kind, precision):
    eager, compiled = Losses(), Losses()
    run(kind, precision=precision, callbacks=[eager])
    run(kind, precision=precision, callbacks=[compiled], compile=True)
    assert compiled.of == pytest.approx(eager.of, abs=1e-4 if precision == "fp32" else 0.05)


def test_the_loss_is_compiled_once_whatever_validation_and_samples_do(run):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    samples = Samples(byte([], []), prompts=["fox"], seed=1, max_new_tokens=3)
    run(compile=True, precision="bf16", max_steps=5, val_every_steps=2, callbacks=[samples])
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("compile", [False, True])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(run, tmp_path, compile):
    options = {"max_steps": 9, "precision": "bf16", "dropout": 0.1, "optimizer": "muon", "compile": compile}
    straight = [Losses() for _ in range(3)]
    for i, losses in enumerate(straight):
        run(callbacks=[losses, RunCheckpoints(4)], folder=tmp_path / f"straight-{i}", **options)

    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "config.yaml").write_text("")
    with pytest.raises(Kill):
        run(callbacks=[RunCheckpoints(4), KillAfter(2 * 6)], folder=folder, **options)  # in step 6, of two micro-steps
    state, _ = find_training_state(folder)
    assert state.step == 4
    resumed = Losses()
    run(callbacks=[resumed, RunCheckpoints(4)], folder=folder, state=state, **options)

    assert sorted(resumed.of) == [5, 6, 7, 8, 9]
    apart = largest_difference(resumed, straight[0])
    by_themselves = max(largest_difference(straight[i], straight[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    kernels = unsteady_kernels(lambda: run(folder=tmp_path / "told", **options | {"max_steps": 2}))
    print(f"resumed differs by {apart:.2g}, straight runs by {by_themselves:.2g}; unsteady: {kernels or 'none'}")
    if TRY_ON_CPU:
        assert apart == by_themselves == 0

    # Kernels that sum in another order each time make straight runs differ, and a resumed one a little more or less.
    allowed = 4 * by_themselves + 1e-3 if by_themselves or kernels else 0
    assert apart <= allowed


def largest_difference(ours, theirs):
    return max(abs(ours.of[step] - theirs.of[step]) for step in ours.of.keys() & theirs.of.keys())


def unsteady_kernels(function):
    """Names of the operations that may give other bits each time, of those that torch knows of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            function()
        finally:
            torch.use_deterministic_algorithms(False)
    texts = [str(warning.message) for warning in told]
    return {text.split(" does not")[0] for text in texts if " does not have a deterministic implementation" in text}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_bad_step_is_skipped_counted_and_named(run, optimizer):
    poison, said = Poison({2, 4}), Said()
    trainer = run(
        optimizer=optimizer, precision="bf16", callbacks=[poison, Scalars(1), Stopping(None, 3)], loggers=[said]
    )
    for step in range(5):
        before, after = poison.around[step], poison.around[step + 1]
        assert all(map(torch.equal, before, after)) == (step in poison.steps)
    assert {step: value for (tag, step), value in said.points.items() if tag == "train/bad_steps"} == {3: 1, 5: 2}
    assert [line.split(":")[0] for line in said.lines] == ["step 3 not applied", "step 5 not applied"]
    assert trainer.lightning_module.bad_steps == 2


class NoWaiting(L.Callback):
    """Makes torch raise where the host waits for the GPU, from the start of one step to the end of another."""

    def __init__(self, first, last):
        self.first, self.last = first, last

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.first and batch_idx % trainer.accumulate_grad_batches == 0:
            self.set("error")

    def on_train_batch_end(self, trainer, module, *batch):
        # torch does not notice that an event is waited for: look whether the newest step is still unread.
        if self.first < trainer.global_step <= self.last and torch.cuda.is_available():
            assert module.outcome.step == trainer.global_step - 1
        if trainer.global_step == self.last:
            self.set("default")

    def set(self, mode):
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_host_never_waits_in_steps_that_are_not_logged(run, optimizer, compile):
    callbacks = [NoWaiting(3, 8), Scalars(10), Stopping(1000.0, 3), RunCheckpoints(50)]
    options = {"precision": "bf16", "max_steps": 12, "val_every_steps": 12, "dropout": 0.1}
    try:
        run(optimizer=optimizer, compile=compile, callbacks=callbacks, **options)
    finally:
        NoWaiting(0, 0).set("default")


@KINDS
def test_a_compiled_decoder_draws_the_ids_of_the_eager_one(device, kind):
    model = model_of(kind).to(device).eval()
    ids = []
    for compile in (False, True):
        rules = Rules(max_new_tokens=20, temperature=0.8, top_k=50)
        decoder = Decoder(model, [[1, 2, 3], [4, 5]], rules, streams=[0, 1], batch_size=2, compile=compile)
        ids.append([[token for _, token, _ in decoder.draw()] for _ in range(20)])
    assert ids[0] == ids[1]


def test_one_rank_of_ddp_equals_none(run, monkeypatch):
    plain, one_rank = Losses(), Losses()
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


def test_utilisation_is_a_hand_count_over_the_makers_peak(run, device):
    seen = Work()
    peak = None if torch.cuda.is_available() else 1.0
    run("gpt2", precision="bf16", callbacks=[Scalars(2, peak_tflops=peak)], loggers=[seen])
    # Six operations a weight and token: 12 C^2 in each of 2 blocks, V C to unembed; 12 N C T in attention.
    n_layers, d_model, context_length, n_vocab = 2, 64, 64, 257
    flops = 6 * (n_layers * 12 * d_model**2 + n_vocab * d_model) + 12 * n_layers * d_model * context_length
    if "work/mfu" not in seen.newest:
        pytest.skip(f"no maker's peak is known of {torch.cuda.get_device_name()}")
    implied = seen.newest["work/tokens_per_second"] * flops / seen.newest["work/mfu"]
    by_data_sheet = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12}
    expected = 1e12 if TRY_ON_CPU else by_data_sheet.get(torch.cuda.get_device_name(), implied)
    assert implied == pytest.approx(expected, rel=1e-6)


class Agreeing(L.Callback):
    """Has the one rank agree with itself in every step, as several do."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        module.not_finite = torch.zeros((), device=module.device)
        module.stop_request = lambda: (15, True)
        module._agree()
        assert module.not_finite.item() == 0
        assert module._request.tolist() == [15, 1]
        module.stop_request = lambda: (0, False)


class Work(Seen):
    """The newest point of every tag, of those under work/ too, which differ from run to run."""

    def __init__(self):
        super().__init__()
        self.newest = {}

    def log_metrics(self, metrics, step):
        self.newest.update(metrics)


class Walled(L.Callback):
    """Milliseconds of the newest step by the host's clock, the device waited for at both ends."""

    def wait(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_start(self, *_):
        self.start = self.wait()

    def on_train_batch_end(self, *_):
        now = self.wait()
        self.spent = 1000 * (now - self.start)
        self.start = now


def test_the_parts_of_a_step_add_up_to_its_wall_time(run):
    large = {"context_length": 64, "d_model": 1024, "n_layers": 6, "n_heads": 16}  # busier than what starts its kernels
    if TRY_ON_CPU:
        large = SIZES
    seen, wall = Work(), Walled()
    options = {"global_batch_size": 128, "batch_size": 128, "max_steps": 12, "val_every_steps": 12}
    # Only the last step is logged, so that no logging falls into it; the wall is read before Scalars computes its own.
    run("gpt2", sizes=large, precision="bf16", callbacks=[wall, Scalars(12)], loggers=[seen], **options)
    parts = sum(value for tag, value in seen.newest.items() if tag.startswith("work/ms/"))
    print(f"parts {parts:.2f} ms, wall {wall.spent:.2f} ms")
    if not TRY_ON_CPU:
        assert parts == pytest.approx(wall.spent, rel=0.05)


def test_the_largest_batch_that_fits_is_found_in_time_and_its_memory_given_back(device):
    from gptmini.training.batch_size import TRIAL_SECONDS, choose_batch_size

    model = model_of("modern", d_model=256, context_length=512)
    options = {"global_batch_size": 4096, "devices": 1, "device": device, "precision": "bf16", "compile": False}
    start = time.perf_counter()
    size = choose_batch_size(model, **options)
    assert time.perf_counter() - start < TRIAL_SECONDS
    assert 4096 % size == 0
    if torch.cuda.is_available():
        assert torch.cuda.memory_reserved() < 2**28  # 256 MB: what libraries keep
    print(f"{size} of 4096 sequences at once")
