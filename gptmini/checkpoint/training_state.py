"""The training state of a checkpoint, from which a run resumes."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gptmini.checkpoint.file import build_model
from gptmini.model import GPT
from gptmini.system.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The training state of a checkpoint, from which a run resumes."""

    path: Path  # the checkpoint file
    model: GPT  # in training mode, on the CPU
    tokenizer: dict  # the tokenizer's to_dict()
    data_folder: Path  # folder of the token files that the run started with
    data_fingerprint: str  # fingerprint of the data's text, split and tokenizer
    step: int  # optimizer steps done
    max_steps: int  # the run's last optimizer step
    validated_step: int  # latest validated step
    # Path, step, optimizer and published details of the initial weights. None: the weights were random.
    origin: dict | None
    bad_steps: int  # steps that were not applied, because loss or gradient was not finite
    bad_steps_in_a_row: int  # bad steps since the last applied step
    optimizer: dict[str, dict[str, Tensor]]  # moments and step count of each parameter, by name
    callbacks: dict[str, dict]  # state_dict() of each callback, by state_key

    @classmethod
    def parse(cls, checkpoint: dict, path: Path) -> "TrainingState":
        """Build the training state of a checkpoint that read_checkpoint returned. `path` is the file of the checkpoint.

        Raises UserError if the checkpoint holds only a model, or if its training state has a different layout.
        """
        try:
            entry = checkpoint["gptmini"]
            bad_steps, bad_steps_in_a_row = entry["bad_steps"]
            (optimizer,) = checkpoint["optimizer_states"]

            return cls(
                path=path,
                model=build_model(checkpoint).train(),
                tokenizer=entry["tokenizer"],
                data_folder=Path(entry["data"]["folder"]),
                data_fingerprint=entry["data"]["fingerprint"],
                step=checkpoint["global_step"],
                max_steps=entry["max_steps"],
                validated_step=entry["validated_step"],
                origin=entry.get("init_from"),
                bad_steps=bad_steps,
                bad_steps_in_a_row=bad_steps_in_a_row,
                optimizer=optimizer["state"],
                callbacks=checkpoint["callbacks"],
            )

        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError):  # an entry is missing or has a wrong type
            raise UserError(
                f"{path} has no training state that this version can resume from"
            ) from None
