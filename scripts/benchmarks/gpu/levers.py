"""The levers of the ladder: one thing each that training can do otherwise, and that may make it faster."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gptmini.model.loss import PiecewiseLoss
from gptmini.training import GPTModule

from .setting import Scale


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One thing that training does otherwise than the base of the ladder."""

    name: str  # as the row of the table is called
    overrides: tuple[str, ...] = ()  # KEY=VALUE each
    # Of all levers of one kind, one can be pulled. A lever whose kind is None goes with all others.
    kind: str | None = None
    # Makes the context in which the fit runs.
    around: Callable[[], AbstractContextManager] = nullcontext
    adapt: Callable[[GPTModule], None] | None = None  # changes the module before it is trained


def levers(scale: Scale, preset: str) -> list[Lever]:
    """Return the levers of a preset, in the order in which the ladder tries them."""
    rungs = []
    for size in scale.batch_sizes:
        rungs.append(
            Lever(
                name=f"micro-batch {size}",
                kind="micro-batch",
                overrides=(f"trainer.batch_size={size}",),
            )
        )

    if preset == "modern":
        rungs.append(Lever(name="Muon compiled", around=compiled_orthogonalization))

    rungs += [
        # The loss in pieces computes under autocast whatever the precision, so it cannot go with the bf16 stream.
        Lever(
            name="bf16 stream",
            kind="loss",
            overrides=("trainer.precision=bf16_stream",),
        ),
        Lever(name="batches cut when needed", around=batches_cut_when_needed),
        Lever(name="flash attention", kind="attention", around=flash_attention),
        Lever(name="cuDNN attention", kind="attention", around=cudnn_attention),
        Lever(name="coordinate descent tuning", around=coordinate_descent_tuning),
        Lever(name="loss in pieces", kind="loss", adapt=compute_loss_in_pieces),
        Lever(name="not compiled", overrides=("trainer.compile=false",)),
    ]
    return rungs


def compiled_orthogonalization() -> AbstractContextManager:
    """Compile Muon's Newton-Schulz steps, which take a stack of equally large matrices at a time."""
    # gptmini.optim has a function muon too, which an import statement would give instead of the module.
    muon = import_module("gptmini.optim.muon")
    compiled = torch.compile(muon.orthogonalize, dynamic=False)
    return patch.object(muon, "orthogonalize", compiled)


def batches_cut_when_needed() -> AbstractContextManager:
    """Cut each batch when its micro-step asks for it, instead of ahead of time."""
    return patch("gptmini.training.datamodule.CUT_AHEAD_FOR", ())


def flash_attention() -> AbstractContextManager:
    """Have torch use flash attention, or the plain formula where flash attention cannot be used."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])


def cudnn_attention() -> AbstractContextManager:
    """Have torch use cuDNN's attention, or the plain formula where cuDNN's cannot be used."""
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH])


def coordinate_descent_tuning() -> AbstractContextManager:
    """Have inductor tune the settings of its kernels one by one."""
    return torch._inductor.config.patch(coordinate_descent_tuning=True)


def compute_loss_in_pieces(module: GPTModule) -> None:
    """Compile all of the model but its loss, and compute the loss piece by piece, so that not all logits are held."""
    model = module.model
    hidden = torch.compile(model.hidden, dynamic=False, fullgraph=True)

    def compute(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # tokens and targets are int64 (B, T), the hidden states (B, T, C).
        return PiecewiseLoss.apply(hidden(tokens), model.unembedding_weight, targets, model)

    module.compute_loss = compute


def best_of_each_kind(helped: Sequence[tuple[float, Lever]]) -> list[Lever]:
    """Return the levers that can be pulled together: of each kind the one that gained most.

    Args:
        helped: how many times as fast as the base each lever made training, and the lever.
    """
    fastest: dict[str, tuple[float, Lever]] = {}
    for gain, lever in helped:
        kind = lever.kind or lever.name
        if kind not in fastest or gain > fastest[kind][0]:
            fastest[kind] = (gain, lever)
    return [lever for _, lever in fastest.values()]
