"""What a run goes on from: the training half of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gptmini.checkpoint.file import build_model
from gptmini.model.gpt import GPT
from gptmini.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a run goes on from: the training half of a checkpoint."""

    path: Path  # the checkpoint file
    model: GPT  # in training mode, on the CPU
    tokenizer: dict  # the tokenizer's to_dict()
    data_folder: Path  # folder of the token files that the run began with
    data_fingerprint: str  # fingerprint of the data's text, split and tokenizer
    step: int  # optimizer steps done
    max_steps: int  # optimizer steps that the run was to do
    validated_step: int  # newest step that a validation followed
    # Path and step of the weights that the run began with, and what was published with them; None for new ones.
    origin: dict | None
    bad_steps: int  # steps that were not applied, because loss or gradient was not finite
    bad_steps_in_a_row: int  # bad steps since the last step that was applied
    optimizer: dict[str, dict[str, Tensor]]  # by a parameter's name, its moments and step count
    callbacks: dict[str, dict]  # by a callback's state_key, its state_dict()

    @classmethod
    def parse(cls, checkpoint: dict, path: Path) -> "TrainingState":
        """Build the training state of a checkpoint that read_checkpoint returned; path names the file in errors.

        Raises UserError: the checkpoint holds a model alone, or a training state of another layout.
        """
        try:
            own = checkpoint["gptmini"]
            bad_steps, bad_steps_in_a_row = own["bad_steps"]
            (optimizer,) = checkpoint["optimizer_states"]
            return cls(
                path=path,
                model=build_model(checkpoint).train(),
                tokenizer=own["tokenizer"],
                data_folder=Path(own["data"]["folder"]),
                data_fingerprint=own["data"]["fingerprint"],
                step=checkpoint["global_step"],
                max_steps=own["max_steps"],
                validated_step=own["validated_step"],
                origin=own.get("init_from"),
                bad_steps=bad_steps,
                bad_steps_in_a_row=bad_steps_in_a_row,
                optimizer=optimizer["state"],
                callbacks=checkpoint["callbacks"],
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError):  # an entry is missing, or has another form
            raise UserError(
                f"{path} holds no training state that this version can go on from"
            ) from None
