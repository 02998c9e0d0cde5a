"""Train with gptmini's own loop from Python: one line each for settings, tokens, module and trainer, easy to change."""

import sys
from pathlib import Path

import lightning as L

import gptmini
from gptmini.configuration.compose import compose
from gptmini.configuration.stored import settings_of
from gptmini.job.tokens import open_corpus
from gptmini.training import build_trainer
from gptmini.training.assembling import assemble


class Printing(L.Callback):
    """Prints each validation."""

    def on_validation_end(self, trainer, module):
        """Print the step and the loss."""
        print(f"step {trainer.global_step}: val loss {module.evaluation.loss:.4f}")


# Use the same overrides as on the command line, and replace the callbacks by your own objects.
text, *overrides = sys.argv[1:]
composition = compose("train", ["data=text", f"data.path={text}", *overrides])
settings, _ = settings_of(composition)

store, _ = gptmini.prepare(open_corpus(settings), settings.tokenizer.builder(), Path("data"))
module, batches = assemble(settings, store)
trainer = build_trainer(module, Path("runs"), callbacks=[Printing()])
trainer.fit(module, batches)
print(gptmini.generate(module.model, store.tokenizer, "Line ", max_new_tokens=20, seed=1)[0])
