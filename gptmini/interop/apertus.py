"""Apertus's form of the modern GPT: the same function, written with weights that the modern GPT does without.

Apertus is NanoChat without the norm behind the embedding and without the cap on logits, and with four things more:

- Its norms have gains, which are 1.
- It turns queries and keys by the angle of their position, where gptmini and NanoChat turn them by minus the angle.
  With the halves of each head exchanged, one turn is the other, and scores do not notice an exchange in both.
- Its norm of queries and keys comes before the turn and not behind it. A turn keeps the length of a vector, so that the
  order of the two does not matter where the norm's gains are 1.
- Its activation is xIELU (Huang and Schlag 2024), which is alpha_p relu^2 for alpha_n = 0 and beta = 0. Of a stored
  alpha_p or alpha_n, xIELU takes the softplus. In a folder of bf16 or fp16, the softplus of the rounded alpha_p is not
  quite 1, and it becomes part of the matrix behind the activation.

The norm behind the embedding becomes part of the embedding: each of its rows is normalised.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from gptmini.interop.llama import with_halves_exchanged
from gptmini.model.config import GPTConfig
from gptmini.model.layers import RMS_NORM_EPS
from gptmini.user_error import UserError

EMBEDDING = "model.embed_tokens.weight"
# What is smaller counts as 0, because it changes no logit beyond the rounding of float32.
SMALL = 1e-6
# The stored numbers with which xIELU is relu^2: softplus(alpha_p) = 1, and softplus(alpha_n) = 0 in any dtype.
XIELU = {
    "alpha_p": torch.tensor([math.log(math.expm1(1))]),
    "alpha_n": torch.tensor([-100.0]),
    "beta": torch.tensor(0.0),
    "eps": torch.tensor(-1e-6),
}


def to_apertus(state: dict[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The weights of Apertus, given those that it shares with the GPT under their names in Apertus."""
    exported = dict(state)
    if config.embedding_norm:
        exported[EMBEDDING] = F.rms_norm(state[EMBEDDING], (config.d_model,), eps=RMS_NORM_EPS)

    dtype = state[EMBEDDING].dtype
    for name in _norm_names(config):
        exported[name] = torch.ones(_width_of(name, config), dtype=dtype)
    for i in range(config.n_layers):
        for projection in ("q_proj", "k_proj"):
            name = f"model.layers.{i}.self_attn.{projection}.weight"
            exported[name] = with_halves_exchanged(state[name], config.head_width)
        for name, value in XIELU.items():
            exported[f"model.layers.{i}.mlp.act_fn.{name}"] = value.to(dtype).clone()
    return exported


def from_apertus(state: dict[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """The weights that the GPT shares with an Apertus that gptmini exported, under their names in Apertus.

    Raises UserError: gains other than 1, or an activation that is no multiple of relu^2; RuntimeError or IndexError:
    a weight has another shape.
    """
    shared = dict(state)
    for name in _norm_names(config):
        if not bool((shared.pop(name) == 1).all()):
            raise UserError(f"{name} must be 1 everywhere in an Apertus that GPT computes")

    for i in range(config.n_layers):
        prefix = f"model.layers.{i}."
        numbers = {name: shared.pop(f"{prefix}mlp.act_fn.{name}").float() for name in XIELU}
        if not bool(F.softplus(numbers["alpha_n"]) + numbers["beta"].abs() < SMALL):
            raise UserError(
                f"{prefix}mlp.act_fn must have alpha_n=-100 and beta=0, as in relu2, in an Apertus that GPT computes"
            )
        down = f"{prefix}mlp.down_proj.weight"
        shared[down] = shared[down].float() * F.softplus(numbers["alpha_p"])
        for projection in ("q_proj", "k_proj"):
            name = f"{prefix}self_attn.{projection}.weight"
            shared[name] = with_halves_exchanged(shared[name], config.head_width)
    return shared


def extra_names(config: GPTConfig) -> set[str]:
    """The names of the weights of Apertus that the GPT does without."""
    names = set(_norm_names(config))
    for i in range(config.n_layers):
        names |= {f"model.layers.{i}.mlp.act_fn.{name}" for name in XIELU}
    return names


def _width_of(name: str, config: GPTConfig) -> int:
    """Gains of a norm of Apertus."""
    is_of_head = name.endswith(("q_norm.weight", "k_norm.weight"))
    return config.head_width if is_of_head else config.d_model


def _norm_names(config: GPTConfig) -> list[str]:
    """The names of the gains of Apertus's norms."""
    names = ["model.norm.weight"]
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}."
        names += [
            f"{prefix}attention_layernorm.weight",
            f"{prefix}feedforward_layernorm.weight",
            f"{prefix}self_attn.q_norm.weight",
            f"{prefix}self_attn.k_norm.weight",
        ]
    return names
