"""Muon for the matrices inside the blocks and AdamW for everything else: one optimizer, whose groups say which."""

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gptmini.optim.schedules import ramp

# a x + b (x x^T) x + c (x x^T)^2 x, repeated, sends singular values in (0, 1] towards 1 (Jordan et al. 2024).
QUINTIC, TINY = (3.4445, -4.7750, 2.0315), 1e-7
MOMENTS = {"muon": ("momentum",), "adamw": ("exp_avg", "exp_avg_sq")}  # kept for each parameter, beside its step


def orthogonalize(matrices: Tensor, ns_steps: int) -> Tensor:
    """Nearly the closest matrices with orthonormal rows, by Newton-Schulz in the dtype given.

    matrices are (n, rows, columns), rows at most columns; 5 ns_steps bring all but the smallest singular values to
    within about 0.3 of 1.
    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = QUINTIC
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=TINY)
    for _ in range(ns_steps):
        gram = x @ x.mT  # (n, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # (n, rows, columns)
    return x


class MuonAdamW(torch.optim.Optimizer):
    """Steps groups of kind "muon" along their orthogonalized momentum, and groups of kind "adamw" as AdamW does.

    A muon group has lr, momentum, momentum_warmup_steps, ns_steps, weight_decay and cautious; an adamw group has lr,
    betas, eps, weight_decay and fused. Queries, keys and values count as one matrix: apart they learn no faster. On a
    GPU that computes in bfloat16 momentum is orthogonalized in it, whatever the precision of training.
    """

    def __init__(self, groups: list[dict]) -> None:
        super().__init__(groups, {})  # complete ones: nothing has a default

    @torch.no_grad()
    def step(self, closure=None) -> Tensor | None:
        """Update every parameter that has a gradient; closure computes the gradients first and its loss is returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            muon = group["kind"] == "muon"
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in trained:
                if parameter not in self.state:
                    # AdamW's fused kernel wants the count beside the weights; Muon reads it on the CPU.
                    count = torch.zeros((), dtype=torch.float32, device="cpu" if muon else parameter.device)
                    moments = {name: torch.zeros_like(parameter) for name in MOMENTS[group["kind"]]}
                    self.state[parameter] = moments | {"step": count}
            if trained:
                (self._step_muon if muon else self._step_adamw)(group, trained)
        return loss

    def _step_adamw(self, group: dict, trained: list[Tensor]) -> None:
        moments = ([self.state[p][name] for p in trained] for name in MOMENTS["adamw"])
        steps, (beta1, beta2) = [self.state[p]["step"] for p in trained], group["betas"]
        settings = {name: group[name] for name in ("lr", "eps", "weight_decay")} | {"beta1": beta1, "beta2": beta2}
        gradients = [p.grad for p in trained]
        adamw(trained, gradients, *moments, [], steps, fused=group["fused"], amsgrad=False, maximize=False, **settings)

    def _step_muon(self, group: dict, trained: list[Tensor]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = {}  # matrix, its change, the change's scale
        for matrix in trained:
            state = self.state[matrix]
            beta = ramp(int(state["step"]), *group["momentum"], group["momentum_warmup_steps"])
            state["step"] += 1
            state["momentum"].lerp_(matrix.grad, 1 - beta)
            change = matrix.grad.lerp(state["momentum"], beta)  # Nesterov's
            n_rows, n_columns = matrix.shape
            scale = max(1.0, n_rows / n_columns) ** 0.5  # so that the rate suits outputs of any width
            if n_rows > n_columns:
                matrix, change = matrix.mT, change.mT
            by_shape.setdefault(matrix.shape, []).append((matrix, change, scale))
        for matrices in by_shape.values():
            changes = torch.stack([change for _, change, _ in matrices])  # (n, rows, columns)
            native = changes.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
            changes = orthogonalize(changes.bfloat16() if native else changes, group["ns_steps"]).to(changes.dtype)
            for (matrix, _, scale), change in zip(matrices, changes, strict=True):
                if group["weight_decay"]:
                    shrinking = matrix * change > 0 if group["cautious"] else 1  # decay where the step agrees
                    matrix.sub_(matrix * shrinking, alpha=group["lr"] * group["weight_decay"])
                matrix.add_(change, alpha=-group["lr"] * scale)
