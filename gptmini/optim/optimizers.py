"""The settings of the optimizers.

This module does not import torch, so that a command reports a wrong value before the slow import of torch.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, with_config
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from gptmini.settings import STRICT, Pair, Rate

if TYPE_CHECKING:
    import torch

    from gptmini.optim.muon import MuonAdamW


@with_config(STRICT)
class RateFactors(TypedDict, total=False):
    """For each kind of weights, a factor by which the learning rate is multiplied. The default of each factor is 1."""

    matrices: Rate  # weights with two dimensions in the blocks
    embedding: Rate  # token and position embeddings
    unembedding: Rate  # the unembedding, even if it is tied to the token embedding
    scalars: Rate  # gains, biases and all other parameters


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AdamWSettings:
    """The settings of AdamW with weight decay only for matrices. A fused kernel does each step.

    Source of AdamW: Loshchilov and Hutter 2019. Source of weight decay only for matrices: Brown et al. 2020, appendix
    B.
    """

    lr: Rate  # peak learning rate; a schedule multiplies it by a factor
    betas: Pair  # decay rates of the first moment and of the second moment
    eps: NonNegativeFloat  # added to the square root of the second moment
    # A step multiplies every matrix by 1 - lr * weight_decay.
    weight_decay: NonNegativeFloat
    lr_scale: RateFactors = field(default_factory=RateFactors)

    def build(self, model: "torch.nn.Module") -> "torch.optim.AdamW":
        """Build the optimizer for the trained parameters of a model. Only matrices get weight decay."""
        import torch

        from gptmini.optim.groups import sort_parameters

        factors: Mapping[str, Any] = self.lr_scale
        groups = []
        for kind, parameters in sort_parameters(model).items():
            peak_lr = self.lr * factors.get(kind, 1.0)
            matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
            vectors = [parameter for parameter in parameters if parameter.ndim < 2]

            for params, weight_decay in ((matrices, self.weight_decay), (vectors, 0.0)):
                if params:
                    groups.append(
                        {
                            "name": kind,
                            "params": params,
                            "weight_decay": weight_decay,
                            "peak_lr": peak_lr,
                        }
                    )

        beta1, beta2 = self.betas
        return torch.optim.AdamW(
            groups,
            lr=self.lr,
            betas=(beta1, beta2),
            eps=self.eps,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MuonSettings:
    """The settings of Muon for the matrices in the blocks, and of AdamW for all other parameters.

    The embeddings and the unembedding have a weight decay of their own. Gains and biases are not decayed.
    """

    # Peak learning rate of Muon. A schedule multiplies this rate and the three rates of AdamW by a factor.
    lr: Rate
    embedding_lr: Rate  # peak learning rate of the token and position embeddings
    # Peak learning rate of the unembedding, even if it is tied to the token embedding.
    unembedding_lr: Rate
    scalar_lr: Rate  # peak learning rate of gains, biases and all other parameters
    # Momentum of Muon at the first step, and momentum of Muon after momentum_warmup_steps steps.
    momentum: Pair
    # Number of optimizer steps over which the momentum changes linearly.
    momentum_warmup_steps: NonNegativeInt
    ns_steps: PositiveInt  # number of Newton-Schulz iterations in each orthogonalization
    # A step multiplies the matrices of Muon by 1 - lr * weight_decay.
    weight_decay: NonNegativeFloat
    # A step multiplies embeddings and unembedding by 1 - lr * embedding_decay, with Muon's lr. None: weight_decay.
    # The default is the value of runs that were stored without this key.
    embedding_decay: NonNegativeFloat | None = 0.0
    # Whether to decay only the weights that the step itself moves towards 0 (Chen et al. 2025).
    cautious: bool
    betas: Pair  # decay rates of the first moment and of the second moment of AdamW
    eps: NonNegativeFloat  # added to the square root of the second moment of AdamW
    lr_scale: RateFactors = field(default_factory=RateFactors)

    def build(self, model: "torch.nn.Module") -> "MuonAdamW":
        """Build an optimizer with Muon for the trained matrices in the blocks, and AdamW for all other parameters.

        Parameters that are not trained are left out.
        """
        from gptmini.optim.groups import KINDS, sort_parameters
        from gptmini.optim.muon import MuonAdamW

        sorted_parameters = sort_parameters(model)
        peak_lrs = {
            "matrices": self.lr,
            "embedding": self.embedding_lr,
            "unembedding": self.unembedding_lr,
            "scalars": self.scalar_lr,
        }

        of_muon = {
            "kind": "muon",
            "momentum": list(self.momentum),
            "momentum_warmup_steps": self.momentum_warmup_steps,
            "ns_steps": self.ns_steps,
            "weight_decay": self.weight_decay,
            "cautious": self.cautious,
        }
        of_adamw = {
            "kind": "adamw",
            "betas": tuple(self.betas),
            "eps": self.eps,
            "fused": True,
        }
        decay = self.weight_decay if self.embedding_decay is None else self.embedding_decay

        factors: Mapping[str, Any] = self.lr_scale
        groups = []
        for kind in KINDS:
            peak_lr = peak_lrs[kind] * factors.get(kind, 1.0)
            # AdamW multiplies the weights by 1 - peak_lr * weight_decay.
            is_decayed = kind in ("embedding", "unembedding") and peak_lr > 0
            weight_decay = {"weight_decay": self.lr * decay / peak_lr if is_decayed else 0.0}
            groups.append(
                {
                    "name": kind,
                    "params": sorted_parameters[kind],
                    "lr": peak_lr,
                    "peak_lr": peak_lr,
                    **(of_muon if kind == "matrices" else of_adamw | weight_decay),
                }
            )
        return MuonAdamW([group for group in groups if group["params"]])
