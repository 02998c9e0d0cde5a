"""DDP and FSDP2 on any number of processes give the weights and checkpoints of one process."""

import math
from functools import partial

import lightning as L
import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from forked import as_rank, in_processes
from gptmini.checkpoint.file import TrainingState, read_checkpoint
from gptmini.training.callbacks.checkpoints import RunCheckpoints
from gptmini.training.devices.distributed import gathered
from gptmini.training.optimizer_state import gather_optimizer_state
from training.watchers import Figures

N_STEPS = 6
# In float64, the order of summing gradients has no visible effect. Dropout depends on the sequence only.
EXACT = {"dtype": torch.float64, "max_steps": N_STEPS, "dropout": 0.2, "ema_steps": 3}

assert_close = partial(torch.testing.assert_close, atol=1e-11, rtol=0)


def trained(train, n_ranks, **settings):
    """The losses and weights of a run, from one of its processes."""
    if n_ranks > 1:
        as_rank()
    figures = Figures()
    callbacks = [figures, RunCheckpoints(every_steps=2)]
    trainer = train("modern", devices=n_ranks, callbacks=callbacks, **settings)
    weights = {}
    for name, weight in trainer.lightning_module.model.named_parameters():
        weights[name] = gathered(weight.detach()).tolist()
    return figures.losses, figures.validations, weights


def weights_of_one_process(train, folder, optimizer):
    """The losses, validation losses and weights of six steps on one process; its checkpoint is in the folder."""
    return trained(train, 1, folder=folder, optimizer=optimizer, **EXACT)


# All pairs of these values are tested, here or in the tests below that move a checkpoint between strategies.
CASES = [
    ("adamw", "ddp", 2, 2),
    ("adamw", "fsdp2", 4, 2),
    ("adamw", "fsdp2", 2, 1),
    ("muon", "ddp", 4, 1),
    ("muon", "fsdp2", 2, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "strategy", "n_ranks", "n_micro_steps"), CASES)
def test_every_strategy_trains_what_one_process_trains(
    train, tmp_path, optimizer, strategy, n_ranks, n_micro_steps
):
    expected = weights_of_one_process(train, tmp_path / "alone", optimizer)
    assert len(expected[0]) == N_STEPS

    together = partial(
        trained,
        train,
        n_ranks,
        folder=tmp_path / "together",
        strategy=strategy,
        batch_size=8 // n_ranks // n_micro_steps,
        optimizer=optimizer,
        **EXACT,
    )
    for losses, val_losses, weights in in_processes(n_ranks, together, folder=tmp_path):
        torch.testing.assert_close(losses, expected[0], atol=1e-12, rtol=0)
        torch.testing.assert_close(val_losses, expected[1], atol=1e-12, rtol=0)
        assert_close(weights, expected[2])

    # The checkpoint has the same names, and values within the same tolerance.
    of_one = read_checkpoint(tmp_path / "alone" / "checkpoints" / "last.ckpt")
    path = tmp_path / "together" / "checkpoints" / "last.ckpt"
    of_many = read_checkpoint(path)
    assert_close(of_many["state_dict"], of_one["state_dict"])
    (moments,), (of_alone,) = of_many["optimizer_states"], of_one["optimizer_states"]
    assert_close(moments["state"], of_alone["state"])
    assert TrainingState.parse(of_many, path).step == N_STEPS


def stopping_after(step):
    """Make a module end its run after a step."""

    def watch(module):
        end = module.on_train_batch_end

        def on_train_batch_end(*arguments):
            end(*arguments)
            module.trainer.should_stop |= module.trainer.global_step >= step

        module.on_train_batch_end = on_train_batch_end

    return watch


def continued(train, n_ranks, *, path, **settings):
    """Resume from a checkpoint as one process of a run; return the weights."""
    state = TrainingState.parse(read_checkpoint(path), path)
    return trained(train, n_ranks, state=state, **settings)[2]


@pytest.mark.slow
def test_a_checkpoint_moves_between_strategies_and_numbers_of_processes(train, tmp_path):
    """Two steps on one process, two on four (FSDP2), two on two (DDP): the weights of six steps on one process."""
    _, _, expected = weights_of_one_process(train, tmp_path / "alone", "muon")

    # The run stops early but keeps its max_steps, so the schedule is that of six steps.
    options = {"folder": tmp_path / "moved", "optimizer": "muon"} | EXACT
    trained(train, 1, watch=stopping_after(2), **options)
    path = tmp_path / "moved" / "checkpoints" / "last.ckpt"
    continue_by = partial(continued, train, path=path, **options)

    first = partial(continue_by, 4, strategy="fsdp2", watch=stopping_after(4))
    in_processes(4, first, folder=tmp_path / "alone")
    assert read_checkpoint(path)["global_step"] == 4

    second = partial(continue_by, 2, strategy="ddp")
    for weights in in_processes(2, second, folder=tmp_path / "moved"):
        assert_close(weights, expected)


def held(train, **settings):
    """The names of full weights and of optimizer state that one of two FSDP2 processes holds for a checkpoint."""
    as_rank()
    trainer = train("modern", devices=2, strategy="fsdp2", **settings)
    module = trainer.lightning_module
    weights = trainer.strategy.lightning_module_state_dict()
    moments = gather_optimizer_state(trainer.optimizers[0], module.parameters_by_name)
    is_whole = not any(isinstance(weight, DTensor) for weight in weights.values())
    n_moments = {name: len(of_one) for name, of_one in moments.items()}
    return is_whole, list(weights), n_moments


@pytest.mark.slow
def test_the_first_process_alone_holds_the_whole_of_a_checkpoint(train, tmp_path):
    settings = {"folder": tmp_path, "optimizer": "muon", "max_steps": 1}
    first, second = in_processes(2, partial(held, train, **settings), folder=tmp_path)
    is_whole, names, n_moments = first
    assert is_whole
    assert set(names) == set(n_moments)
    # Muon's momentum or AdamW's two moments, and the step count.
    assert set(n_moments.values()) == {2, 3}

    # Of the optimizer state, only the step count is not sharded.
    assert second[1] == []
    assert set(second[2].values()) == {1}


class Traffic(L.Callback):
    """Records the collectives of one optimizer step with torch's profiler: names, and how many numbers each sends."""

    def __init__(self):
        self.sent = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self._profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
            self._profiler.start()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step != 1:
            return
        self._profiler.stop()
        for event in self._profiler.events():
            if event.name.startswith("gloo:"):
                (shape,) = event.input_shapes
                self.sent.append((event.name.removeprefix("gloo:"), shape))


def traffic(train, n_ranks, **settings):
    """The collectives of one step of this process, each with the shape of its input, and the sizes of the model."""
    as_rank()
    seen = Traffic()
    trainer = train(
        "modern", devices=n_ranks, callbacks=[seen], max_steps=1, optimizer="muon", **settings
    )
    model = trainer.lightning_module.model
    n_block = sum(weight.numel() for weight in model.blocks[0].parameters())
    n_all = sum(weight.numel() for weight in model.parameters())
    n_matrices = sum(weight.numel() for weight in model.blocks.parameters() if weight.dim() == 2)
    return seen.sent, n_block, n_all, n_matrices


def sizes(sent, name, n_dims):
    """How many numbers each collective of a kind sends, counting only tensors of n_dims dimensions."""
    return [math.prod(shape) for kind, shape in sent if kind == name and len(shape) == n_dims]


@pytest.mark.slow
def test_ddp_sends_gradients_once_and_each_shape_of_matrices_once(train, tmp_path):
    settings = {"folder": tmp_path, "strategy": "ddp", "batch_size": 1}  # four micro-steps
    step = partial(traffic, train, 2, **settings)
    for sent, _, n_all, n_matrices in in_processes(2, step, folder=tmp_path):
        gradients = [size for size in sizes(sent, "all_reduce", 1) if size > 100]
        assert gradients == [n_all]
        # In the blocks: queries, keys and values; the output projection of attention; both matrices of the MLP.
        assert len(sizes(sent, "all_gather", 3)) == 3
        # Each process sends the matrices that it owns: half of them.
        assert sum(sizes(sent, "all_gather", 3)) == n_matrices // 2


@pytest.mark.slow
def test_fsdp2_reduces_gradients_once_and_exchanges_each_shape_of_matrices_twice(train, tmp_path):
    settings = {"folder": tmp_path, "strategy": "fsdp2", "batch_size": 1}  # four micro-steps
    step = partial(traffic, train, 2, **settings)
    n_blocks = 2
    for sent, n_block, n_all, n_matrices in in_processes(2, step, folder=tmp_path):
        # gloo has no reduce-scatter, and all-reduces instead.
        gradients = [size for size in sizes(sent, "all_reduce", 1) if size > 100]
        n_rest = n_all - n_blocks * n_block
        assert sorted(gradients) == sorted([n_block, n_block, n_rest])

        # In each micro-step, blocks are gathered in forward and backward, the rest once. Each process sends a half.
        gathered_numbers = sum(sizes(sent, "all_gather", 1))
        assert gathered_numbers == 4 * (2 * n_blocks * n_block + n_rest) // 2

        # As under DDP, except the two MLP matrices: rows of one and columns of the other are sharded.
        assert len(sizes(sent, "all_gather", 3)) == 2 * 4
        # To the owners and back, each process sends its half of every matrix.
        assert sum(sizes(sent, "all_gather", 3)) == 2 * n_matrices // 2
