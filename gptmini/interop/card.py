"""The model card of an exported folder: README.md, whose head the hub reads."""

from dataclasses import dataclass

from gptmini import __version__
from gptmini.interop.architectures import ARCHITECTURES
from gptmini.model.gpt import GPT
from gptmini.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a model card says of the training; None for what is not known."""

    text: str | None  # name of the text
    version: str | None  # of gptmini, which trained the model
    step: int | None  # optimizer steps
    n_tokens: int | None  # tokens trained on
    val_loss: float | None  # nats per token
    bits_per_byte: float | None
    init_from: str | None = None  # weights that the training began with; None for new weights


def model_card(
    name: str, model: GPT, tokenizer: Tokenizer, training: Training, *, kind: str
) -> str:
    """The text of a model card, with a head of YAML.

    Args:
        name: of the model.
        model: the model.
        tokenizer: its tokenizer.
        training: what is known of its training.
        kind: model type that it is exported as.
    """
    from huggingface_hub import EvalResult, ModelCardData

    results = []
    for metric, title, value in (
        ("loss", "validation loss, nats per token", training.val_loss),
        ("bits_per_byte", "bits per byte", training.bits_per_byte),
    ):
        if value is not None:
            results.append(
                EvalResult(
                    task_type="text-generation",
                    dataset_type=training.text or "unknown",
                    dataset_name=f"{training.text or 'unknown'}, held-out split",
                    metric_type=metric,
                    metric_name=title,
                    metric_value=round(value, 4),
                )
            )
    head = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["gptmini"],
        model_name=name if results else None,
        eval_results=results or None,
    )
    return f"---\n{head.to_yaml()}\n---\n\n{_body(name, model, tokenizer, training, kind)}"


def _body(name: str, model: GPT, tokenizer: Tokenizer, training: Training, kind: str) -> str:
    """What people read of a model card."""
    config = model.config
    origin = f"exported by gptmini {__version__}"
    if training.text is not None:
        origin = f"trained by gptmini {training.version} on the text {training.text}, and {origin}"
    lines = [
        f"# {name}",
        "",
        f"A GPT of {model.n_parameters:,} parameters, {origin} as `{ARCHITECTURES[kind].class_name}`.",
        "",
        "| | |",
        "|---|---|",
        f"| context | {config.longest_input:,} tokens |",
        f"| layers, width, heads | {config.n_layers}, {config.d_model}, {config.n_heads} |",
        f"| vocabulary | {tokenizer.n_vocab:,} tokens |",
    ]
    if training.init_from is not None:
        lines.append(f"| began with | `{training.init_from}` |")
    if training.step is not None:
        lines.append(f"| optimizer steps | {training.step:,} |")
    if training.n_tokens is not None:
        lines.append(f"| tokens trained on | {training.n_tokens:,} |")
    if training.val_loss is not None:
        lines.append(f"| loss on held-out text | {training.val_loss:.4f} nats per token |")
    if training.bits_per_byte is not None:
        lines.append(f"| loss on held-out text | {training.bits_per_byte:.4f} bits per byte |")

    lines += [
        "",
        "```python",
        "from transformers import pipeline",
        "",
        'generate = pipeline("text-generation", "this folder")',
        'print(generate("The ")[0]["generated_text"])',
        "```",
        "",
    ]
    lines += _notes(tokenizer)
    return "\n".join(lines) + "\n"


def _notes(tokenizer: Tokenizer) -> list[str]:
    """What a user of the exported model should know."""
    notes = []
    if tokenizer.end_of_text is None:
        notes.append("- The vocabulary has no token that ends a text; say how many tokens to draw.")
    else:
        name = tokenizer.decode([tokenizer.end_of_text])
        notes.append(
            f"- `{name}` in a text is read as the token that ends a document. In gptmini these characters are plain "
            "text."
        )

    return notes
