"""The model card of an exported folder. It is a README.md with a header for the Hugging Face Hub."""

from dataclasses import dataclass

from gptmini.interop.architectures import ARCHITECTURES
from gptmini.model.gpt import GPT
from gptmini.version import __version__

HEAD = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gptmini\n---\n"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Facts about the training for a model card. A field is None if the fact is unknown."""

    text: str | None = None  # the name of the training text
    version: str | None = None  # the version of gptmini that trained the model
    step: int | None = None  # number of optimizer steps
    n_tokens: int | None = None  # number of tokens that the model was trained on
    val_loss: float | None = None  # validation loss in nats per token
    bits_per_byte: float | None = None
    init_from: str | None = None  # where the initial weights came from; None for new weights


def model_card(name: str, model: GPT, training: Training, *, kind: str) -> str:
    """Return the text of the model card for a model that is exported as the model type `kind`."""
    # gptmini.data.outputs recognises an export by the header and the words "exported by gptmini" with a version.
    architecture = ARCHITECTURES[kind].class_name
    lines = [
        f"A GPT with {model.n_parameters:,} parameters, exported by gptmini {__version__} as `{architecture}`.",
        "",
    ]

    if training.text is not None:
        lines.append(f"- trained by gptmini {training.version} on the text {training.text}")
    for fact, value, form in (
        ("initial weights", training.init_from, ""),
        ("optimizer steps", training.step, ","),
        ("tokens trained on", training.n_tokens, ","),
        ("validation loss, nats per token", training.val_loss, ".4f"),
        ("bits per byte", training.bits_per_byte, ".4f"),
    ):
        if value is not None:
            lines.append(f"- {fact}: {value:{form}}")

    return "\n".join([HEAD, f"# {name}", "", *lines, ""])
