"""What a run goes on from: the training half of a checkpoint, parsed and checked once."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gptmini.checkpoint.file import build_model
from gptmini.model.gpt import GPT
from gptmini.model.shards import StoredTensor
from gptmini.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a run goes on from: the training half of a checkpoint, parsed and checked once."""

    path: Path  # the checkpoint file
    model: GPT  # in training mode, on the CPU
    tokenizer: dict  # the tokenizer's to_dict()
    data_folder: Path  # folder of the token files that the run began with
    data_fingerprint: str  # fingerprint of the data's text, split and tokenizer
    step: int  # optimizer steps done
    max_steps: int  # optimizer steps that the run was to do
    validated_step: int  # newest step that a validation followed
    bad_steps: int  # steps that were not applied, because loss or gradient was not finite
    bad_steps_in_a_row: int  # bad steps since the last step that was applied
    # By a parameter's name, its moments and step count; moments in shards are read later.
    optimizer: dict[str, dict[str, Tensor | StoredTensor]]
    callbacks: dict[str, dict]  # by a callback's state_key, its state_dict()

    @classmethod
    def parse(cls, checkpoint: dict, path: Path) -> "TrainingState":
        """Build the training state of a checkpoint that read_checkpoint returned; path names the file in errors.

        Raises UserError: the checkpoint holds a model alone, or counts and tensors that do not belong together.
        """
        state = None
        try:
            own = checkpoint["gptmini"]
            bad_steps, bad_steps_in_a_row = own["bad_steps"]
            (optimizer,) = checkpoint["optimizer_states"]
            state = cls(
                path=path,
                model=build_model(checkpoint).train(),
                tokenizer=own["tokenizer"],
                data_folder=Path(own["data"]["folder"]),
                data_fingerprint=own["data"]["fingerprint"],
                step=checkpoint["global_step"],
                max_steps=own["max_steps"],
                validated_step=own["validated_step"],
                bad_steps=bad_steps,
                bad_steps_in_a_row=bad_steps_in_a_row,
                optimizer=optimizer["state"],
                callbacks=checkpoint["callbacks"],
            )
            is_consistent = state._is_consistent()
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except Exception:  # a file of unknown origin can lead to an error of any class
            is_consistent = False

        if state is None or not is_consistent:
            raise UserError(f"{path} holds no training state that this version can go on from")
        return state

    def _is_consistent(self) -> bool:
        """Whether every field is of its type, and the counts agree with what the optimizer has done."""
        return self._counts_are_valid() and self._types_are_valid() and self._optimizer_agrees()

    def _counts_are_valid(self) -> bool:
        """Whether every number of steps is a whole number of at least 0."""
        counts = (
            self.step,
            self.max_steps,
            self.validated_step,
            self.bad_steps,
            self.bad_steps_in_a_row,
        )
        return all(type(count) is int and count >= 0 for count in counts)

    def _types_are_valid(self) -> bool:
        """Whether fingerprint, tokenizer and callbacks are of their types."""
        if type(self.data_fingerprint) is not str or type(self.tokenizer) is not dict:
            return False
        if type(self.callbacks) is not dict:
            return False
        return all(type(key) is str for key in self.callbacks)

    def _optimizer_agrees(self) -> bool:
        """Whether the optimizer has counted, for each of its parameters, exactly the steps that were applied."""
        n_applied = self.step - self.bad_steps
        if not self.optimizer and n_applied:
            return False

        for name, moments in self.optimizer.items():
            if type(name) is not str:
                return False
            for tensor in moments.values():
                if not tensor.dtype.is_floating_point:
                    return False
            if moments["step"] != n_applied:
                return False
        return True
