"""Train a GPT in your own LightningModule: gptmini provides tokens and model, Lightning's Trainer trains."""

import sys

import lightning as L
import torch

import gptmini
from gptmini.data import TextCorpus
from gptmini.model import training_loss
from gptmini.tokenizer import byte


class Mine(L.LightningModule):
    """A GPT with your own loss and optimizer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        """Return the loss of a batch, in nats per token."""
        return training_loss(self.model, *batch)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


torch.manual_seed(1)
store, _ = gptmini.prepare(TextCorpus(sys.argv[1], val_fraction=0.1), byte, "data")
# The same as model=gpt2 on the command line, with smaller sizes.
config = gptmini.preset(
    "gpt2",
    vocab_size=store.tokenizer.n_vocab,
    context_length=32,
    d_model=64,
    n_layers=2,
    n_heads=4,
)
model = gptmini.GPT(config)
batches = gptmini.batches(store, batch_size=16, context_length=32, seed=1)
trainer = L.Trainer(max_steps=200, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Mine(model), batches)
print(gptmini.generate(model, store.tokenizer, "The ", max_new_tokens=40, temperature=0.5)[0])
