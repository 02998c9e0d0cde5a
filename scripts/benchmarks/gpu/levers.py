"""The levers of the ladder: single changes that may make training faster."""

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
    """A single change to the base of the ladder."""

    name: str  # name of the row in the table
    overrides: tuple[str, ...] = ()  # KEY=VALUE each
    # Only one lever of each kind can be used at a time. A lever with kind=None works with all others.
    kind: str | None = None
    # Returns the context manager in which the fit runs.
    around: Callable[[], AbstractContextManager] = nullcontext
    adapt: Callable[[GPTModule], None] | None = None  # changes the module before training


def levers(scale: Scale, preset: str) -> list[Lever]:
    """Return the levers of a preset in the order of the ladder."""
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
        # The loss in pieces always uses autocast, so it cannot be combined with the bf16 stream.
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
    """Compile Muon's Newton-Schulz steps, which work on a stack of matrices of equal size."""
    # gptmini.optim also has a function muon. An import statement would return the function instead of the module.
    muon = import_module("gptmini.optim.muon")
    compiled = torch.compile(muon.orthogonalize, dynamic=False)
    return patch.object(muon, "orthogonalize", compiled)


def batches_cut_when_needed() -> AbstractContextManager:
    """Cut each batch when its micro-step needs it, instead of ahead of time."""
    return patch("gptmini.training.datamodule.CUT_AHEAD_FOR", ())


def flash_attention() -> AbstractContextManager:
    """Use flash attention, or the plain formula if flash attention is not possible."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])


def cudnn_attention() -> AbstractContextManager:
    """Use cuDNN's attention, or the plain formula if cuDNN's is not possible."""
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH])


def coordinate_descent_tuning() -> AbstractContextManager:
    """Let inductor tune the settings of its kernels one by one."""
    return torch._inductor.config.patch(coordinate_descent_tuning=True)


def compute_loss_in_pieces(module: GPTModule) -> None:
    """Compile the model without its loss, and compute the loss piece by piece to need less memory for logits."""
    model = module.model
    hidden = torch.compile(model.hidden, dynamic=False, fullgraph=True)

    def compute(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # tokens and targets: int64 (B, T); hidden states: (B, T, C)
        return PiecewiseLoss.apply(hidden(tokens), model.unembedding_weight, targets, model)

    module.compute_loss = compute


def best_of_each_kind(helped: Sequence[tuple[float, Lever]]) -> list[Lever]:
    """Return the levers that can be used together: the fastest of each kind.

    Args:
        helped: pairs of a speed, divided by the base's speed, and its lever.
    """
    fastest: dict[str, tuple[float, Lever]] = {}
    for gain, lever in helped:
        kind = lever.kind or lever.name
        if kind not in fastest or gain > fastest[kind][0]:
            fastest[kind] = (gain, lever)
    return [lever for _, lever in fastest.values()]
