"""Muon for the matrices inside the blocks and AdamW for everything else: one optimizer, whose groups say which."""

import torch
from torch import Tensor
from torch.optim.adamw import adamw

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

    found_inf, as torch's GradScaler sets it on a fused optimizer, is a scalar on the weights' device: where it is 1.0
    the next step changes nothing, neither weights nor moments nor counts, and the host need not know. Counts lie beside
    the weights for that reason.
    """

    def __init__(self, groups: list[dict]) -> None:
        muon_groups = [group for group in groups if group["kind"] == "muon"]
        for group in muon_groups:
            group["capturable"] = True  # torch's word for counts that lie on the device, also after load_state_dict
        super().__init__(groups, {})  # complete ones: nothing has a default
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure=None) -> Tensor | None:
        """Update every parameter that has a gradient; closure computes the gradients first and its loss is returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()

        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in trained:
                if parameter not in self.state:
                    moments = {name: torch.zeros_like(parameter) for name in MOMENTS[group["kind"]]}
                    count = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    self.state[parameter] = moments | {"step": count}
            if trained and group["kind"] == "muon":
                self._step_muon(group, trained)
            elif trained:
                self._step_adamw(group, trained)
        return loss

    def _step_adamw(self, group: dict, trained: list[Tensor]) -> None:
        first_moments, second_moments = ([self.state[p][name] for p in trained] for name in MOMENTS["adamw"])
        beta1, beta2 = group["betas"]
        adamw(
            trained,
            [parameter.grad for parameter in trained],
            first_moments,
            second_moments,
            [],
            [self.state[parameter]["step"] for parameter in trained],
            fused=group["fused"],
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            found_inf=self.found_inf,
        )

    def _step_muon(self, group: dict, trained: list[Tensor]) -> None:
        counts = [self.state[matrix]["step"] for matrix in trained]
        # All matrices of the group have taken the same steps, so that one of their counts is that of all.
        beta = momentum_at(counts[0], *group["momentum"], group["momentum_warmup_steps"])
        dtype = trained[0].dtype
        of_gradient, of_momentum = (1 - beta).to(dtype), beta.to(dtype)
        applied = torch.ones_like(counts[0]) if self.found_inf is None else 1 - self.found_inf
        torch._foreach_add_(counts, [applied] * len(counts))

        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = {}  # matrix, its change, the change's scale
        for matrix in trained:
            momentum = self.state[matrix]["momentum"]
            gradient = matrix.grad
            if self.found_inf is not None:
                gradient = torch.where(applied > 0, gradient, momentum)  # the momentum moves towards itself: nowhere
            momentum.lerp_(gradient, of_gradient)
            change = gradient.lerp(momentum, of_momentum)  # Nesterov's
            n_rows, n_columns = matrix.shape
            scale = max(1.0, n_rows / n_columns) ** 0.5  # so that the rate suits outputs of any width
            if n_rows > n_columns:
                matrix, change = matrix.mT, change.mT
            by_shape.setdefault(matrix.shape, []).append((matrix, change, scale))

        for matrices in by_shape.values():
            changes = torch.stack([change for _, change, _ in matrices])  # (n, rows, columns)
            changes = changes.mul_(applied)  # no change at all in a step that is left out
            native = changes.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
            changes = orthogonalize(changes.bfloat16() if native else changes, group["ns_steps"]).to(changes.dtype)
            for (matrix, _, scale), change in zip(matrices, changes, strict=True):
                if group["weight_decay"]:
                    shrinking = matrix * change > 0 if group["cautious"] else applied  # decay where the step agrees
                    matrix.sub_(matrix * shrinking, alpha=group["lr"] * group["weight_decay"])
                matrix.add_(change, alpha=-group["lr"] * scale)


def momentum_at(count: Tensor, first: float, last: float, warmup_steps: int) -> Tensor:
    """Momentum after count steps: a straight line from first, at none, to last, at warmup_steps and after.

    count is a scalar on a device, and is not read from there; the momentum is a float64 scalar beside it, or float32 on
    Apple's GPUs, which have no float64.
    """
    if count.device.type != "mps":
        count = count.double()
    rising = first + (last - first) * count / max(1, warmup_steps)
    # The number as a tensor on the device: torch.where would copy a plain one there, and wait for it.
    return torch.where(count >= warmup_steps, torch.full_like(rising, last), rising)
