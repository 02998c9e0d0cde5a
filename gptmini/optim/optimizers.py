"""The settings of the optimizers.

This module imports no torch, so that a command tells a wrong value before torch is imported.
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
    """Factors on the learning rate of each kind of weights; 1 for a kind that is left out."""

    matrices: Rate  # of two dimensions, in the blocks
    embedding: Rate  # of tokens and of positions
    unembedding: Rate  # also where it is the embedding of tokens
    scalars: Rate  # gains, biases and everything else


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AdamWSettings:
    """AdamW with weight decay on matrices alone, in one fused kernel.

    Source: Loshchilov and Hutter 2019; decay on matrices alone as in Brown et al. 2020, appendix B.
    """

    lr: Rate  # peak learning rate; a schedule multiplies it
    betas: Pair  # decay rates of the first and of the second moment
    eps: NonNegativeFloat  # added to the root of the second moment
    # A step shrinks every matrix by the factor 1 - lr * weight_decay.
    weight_decay: NonNegativeFloat
    lr_scale: RateFactors = field(default_factory=RateFactors)

    def build(self, model: "torch.nn.Module") -> "torch.optim.AdamW":
        """Build the optimizer of a model's trained parameters; those of two and more dimensions count as matrices."""
        import torch

        from gptmini.optim.groups import sort_parameters

        factors: Mapping[str, Any] = self.lr_scale
        groups = []
        for kind, parameters in sort_parameters(model).items():
            peak_lr = self.lr * factors.get(kind, 1.0)
            matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
            vectors = [parameter for parameter in parameters if parameter.ndim < 2]

            groups.append(
                {
                    "name": kind,
                    "params": matrices,
                    "weight_decay": self.weight_decay,
                    "peak_lr": peak_lr,
                }
            )
            groups.append(
                {
                    "name": kind,
                    "params": vectors,
                    "weight_decay": 0.0,
                    "peak_lr": peak_lr,
                }
            )

        groups = [group for group in groups if group["params"]]
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
    """Muon for the matrices in a GPT's blocks, and AdamW without weight decay for all other parameters."""

    lr: Rate  # peak learning rate of Muon; a schedule multiplies it, as it does the three rates of AdamW
    embedding_lr: Rate  # peak learning rate of the token and position embeddings
    # Peak learning rate of the unembedding, and of the token embedding where the two are tied.
    unembedding_lr: Rate
    scalar_lr: Rate  # peak learning rate of gains, biases and every other parameter
    momentum: Pair  # Muon's momentum on the first step, and from momentum_warmup_steps on
    # Optimizer steps over which the momentum changes linearly.
    momentum_warmup_steps: NonNegativeInt
    ns_steps: PositiveInt  # iterations of Newton-Schulz in each orthogonalization
    # A step shrinks Muon's matrices by the factor 1 - lr * weight_decay.
    weight_decay: NonNegativeFloat
    # Decay only those numbers that the step itself moves towards 0 (Chen et al. 2025).
    cautious: bool
    betas: Pair  # decay rates of AdamW's two moments
    eps: NonNegativeFloat  # that AdamW adds to the root of the second moment
    lr_scale: RateFactors = field(default_factory=RateFactors)

    def build(self, model: "torch.nn.Module") -> "MuonAdamW":
        """Build Muon for the trained matrices inside model.blocks, and AdamW for all other parameters."""
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
            "weight_decay": 0.0,
            "fused": True,
        }

        factors: Mapping[str, Any] = self.lr_scale
        groups = []
        for kind in KINDS:
            peak_lr = peak_lrs[kind] * factors.get(kind, 1.0)
            groups.append(
                {
                    "name": kind,
                    "params": sorted_parameters[kind],
                    "lr": peak_lr,
                    "peak_lr": peak_lr,
                    **(of_muon if kind == "matrices" else of_adamw),
                }
            )
        return MuonAdamW([group for group in groups if group["params"]])
