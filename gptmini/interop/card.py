"""The model card of an exported folder: README.md, whose head the hub reads."""

from dataclasses import dataclass

from gptmini.interop.architectures import ARCHITECTURES
from gptmini.model.gpt import GPT
from gptmini.version import __version__

HEAD = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gptmini\n---\n"


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a model card says of the training; None for what is not known."""

    text: str | None = None  # name of the text
    version: str | None = None  # of gptmini, which trained the model
    step: int | None = None  # optimizer steps
    n_tokens: int | None = None  # tokens trained on
    val_loss: float | None = None  # nats per token
    bits_per_byte: float | None = None
    init_from: str | None = None  # weights that the training began with; None for new weights


def model_card(name: str, model: GPT, training: Training, *, kind: str) -> str:
    """The text of the card of a model of that name, which is exported as the model type `kind`."""
    # gptmini.data.outputs recognises an export by the head and the words "exported by gptmini" with a version.
    architecture = ARCHITECTURES[kind].class_name
    lines = [
        f"A GPT of {model.n_parameters:,} parameters, exported by gptmini {__version__} as `{architecture}`.",
        "",
    ]

    if training.text is not None:
        lines.append(f"- trained by gptmini {training.version} on the text {training.text}")
    for fact, value, form in (
        ("began with", training.init_from, ""),
        ("optimizer steps", training.step, ","),
        ("tokens trained on", training.n_tokens, ","),
        ("validation loss, nats per token", training.val_loss, ".4f"),
        ("bits per byte", training.bits_per_byte, ".4f"),
    ):
        if value is not None:
            lines.append(f"- {fact}: {value:{form}}")

    return "\n".join([HEAD, f"# {name}", "", *lines, ""])
