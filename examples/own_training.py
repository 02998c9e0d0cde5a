"""Train a GPT in a module of one's own: gptmini gives the tokens and the model, Lightning's Trainer trains."""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader

import gptmini
from gptmini.data import TextCorpus
from gptmini.data.batches import gather
from gptmini.model import training_loss
from gptmini.tokenizer import byte


class Mine(L.LightningModule):
    """A GPT with a loss and an optimizer of one's own."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        """Return the loss of a batch, in nats per token."""
        return training_loss(self.model, *batch)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def batches(tokens, n_steps, batch_size, context_length):
    """Random windows of the tokens."""
    for _ in range(n_steps):
        starts = torch.randint(len(tokens) - context_length, (batch_size,)).numpy()
        yield gather(tokens, starts, context_length)


torch.manual_seed(1)
store, _ = gptmini.prepare(TextCorpus(sys.argv[1], val_fraction=0.1), byte, "data")
# The option model=gpt2 of the command line, with sizes of our own.
config = gptmini.preset(
    "gpt2",
    vocab_size=store.tokenizer.n_vocab,
    context_length=32,
    d_model=64,
    n_layers=2,
    n_heads=4,
)
model = gptmini.GPT(config)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
loader = DataLoader(list(batches(store.tokens("train"), 200, 16, 32)), batch_size=None)
trainer.fit(Mine(model), loader)
print(gptmini.generate(model, store.tokenizer, "The ", max_new_tokens=40, temperature=0.5)[0])
