# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     notebook_metadata_filter: kernelspec,-all
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
"""
# A tour of gptmini

A GPT reads text from left to right and predicts each next token. Attention is the part of a GPT that looks back at
earlier tokens. This tour has three steps:

1. Write a text in which half of the digits can be predicted perfectly, but only by looking back.
2. Train a small GPT on this text.
3. See which tokens the GPT looks at, and what it writes.

The tour takes about 15 seconds on one CPU core and downloads nothing. `examples/tour.ipynb` is a notebook;
`python examples/tour.py` runs the same steps as a program.
"""

# %% tags=["active-ipynb"]
# # On Google Colab, enter the address of your copy of gptmini, so that this cell can install it.
# repository = "https://github.com/OWNER/gptmini"
# try:
#     import gptmini
# except ImportError:
#     %pip install --quiet git+{repository}

# %%
import math
import os
import random
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

import gptmini
from gptmini.report import attention_maps, visible

# %% [markdown]
"""
Training writes a run folder and prepared tokens to the current folder. Therefore the tour changes to a new temporary
folder. To choose the folder yourself, set the environment variable `GPTMINI_TOUR` to its path before you start.
"""

# %% tags=["active-py"]
# Only the program has a command line. The notebook does not run this cell.
if len(sys.argv) > 1:
    sys.exit(f"error: the tour takes no arguments, got {' '.join(sys.argv[1:])}")

# %%
folder = os.environ.get("GPTMINI_TOUR")
if not folder:
    folder = tempfile.mkdtemp(prefix="gptmini-tour-")
if Path(folder).is_file():
    sys.exit(f"error: GPTMINI_TOUR must be a folder, got {folder}")

Path(folder).mkdir(parents=True, exist_ok=True)
os.chdir(folder)

# %% [markdown]
"""
## A text with a pattern to find

Each line of the text is a random number of six digits, a space, and the same number again. We draw 4,200 different
numbers. The text has 4,000 of them. The model never sees the other 200 during training, so they can test what it has
learned.
"""

# %%
draw = random.Random(1)  # fixed seed: every reader gets the same numbers
numbers = [f"{number:06d}" for number in draw.sample(range(10**6), 4200)]
training_numbers = numbers[:4000]
new_numbers = numbers[4000:]

text = "".join(f"{number} {number}\n" for number in training_numbers)
Path("numbers.txt").write_text(text, newline="\n")
print(text[:42], end="")

# %% [markdown]
"""
How well can the next character of this text be predicted? The loss of a prediction is `-log(p)` in nats. Here `p` is
the predicted probability of the character that follows in the text.

- A digit of the first number is random. The best prediction gives each of the ten digits a probability of 0.1, so the
  loss is log(10) = 2.30.
- A digit of the second number is certain for a model that looks back at the first number. Its loss can be 0.
- The space and the line break are certain, too, because every number has six digits.

A line has 14 characters. A model that looks back has a mean loss of 6 x 2.30 / 14 = 0.99 nats per character. A model
that knows the format but cannot look back has to guess all twelve digits: 1.97 nats per character.
"""

# %%
loss_of_a_guess = math.log(10)
loss_with_a_look_back = 6 * loss_of_a_guess / 14
loss_without = 12 * loss_of_a_guess / 14
print(f"with a look back {loss_with_a_look_back:.2f}, without {loss_without:.2f} nats a character")

# %% [markdown]
"""
## Train

`gptmini.train` takes the same `key=value` overrides as the command `gptmini train`. All other keys have the values in
the folder `configs/`. These overrides define a GPT with two layers and two attention heads per layer. It reads 32
characters at a time and is trained for 300 optimizer steps.

The output shows, from top to bottom: the number of tokens, the size of the model, the hardware, the run folder, the
loss during training, the result of each validation, and a sample of the model's text.
"""

# %%
settings = [
    "data=text",
    "data.path=numbers.txt",
    "tokenizer=char",  # a token is one character
    "model=modern",
    "model.context_length=32",  # enough for two lines
    "model.d_model=64",
    "model.n_layers=2",
    "model.n_heads=2",
    "trainer.max_steps=300",
    "trainer.global_batch_size=16",
    "trainer.val_every_steps=100",
    "trainer.val_tokens=4096",
    "trainer.threads=1",  # more CPU cores do not help with such small tensors
    "callbacks.samples.max_new_tokens=42",  # three lines
    "callbacks.pictures=null",  # the tour draws its own picture
    "console=lines",
]
run = gptmini.train(*settings)

# %% [markdown]
"""
The validation loss is far below 1.97, the loss of a model that cannot look back. It stays above 0.99, because
validation divides the text into windows of 32 characters. Most windows start in the middle of a line, and no model can
copy a digit from before its window.
"""

# %%
print(f"validation loss {run.best.loss:.2f} nats a character")

# %% [markdown]
"""
## The loss of each character of a line

`gptmini.load` needs only the run folder to load the model and its tokenizer. Now the model predicts the 200 lines of
new numbers. Each line is preceded by a line break, so that the model knows where the line starts. The bars show the
mean loss at each position of a line.

Each digit of the first number has a loss of 2.30 nats: the model has learned that these digits are random. All later
characters have a loss near 0. The model has never seen these numbers, so it cannot have memorized them. It copies them.
"""

# %%
model, tokenizer = gptmini.load(run.folder)

lines = [f"\n{number} {number}\n" for number in new_numbers]
ids = torch.tensor([tokenizer.encode(line) for line in lines])  # (200, 15)
tokens = ids[:, :-1]  # (200, 14): the input of the model
targets = ids[:, 1:]  # (200, 14): the next tokens

with torch.no_grad():
    logits = model(tokens)  # (200, 14, V)
by_token = logits.transpose(1, 2)  # (200, V, 14): cross_entropy expects V as dimension 1
losses = F.cross_entropy(by_token, targets, reduction="none")  # (200, 14)

for character, loss in zip(lines[0][1:], losses.mean(dim=0).tolist(), strict=True):
    bar = "#" * round(10 * loss)
    print(f"{visible(character)} {loss:6.2f}  {bar}")

# %% [markdown]
"""
## What the heads look at

`model.attention_weights` returns the attention weights of each head. Each token has one weight for itself and one for
every earlier token. The weights of a token sum to 1.

Take the line `482137 482137`. After the space, the model must predict the digit 4, which is six tokens back. After this
4, the model must predict the digit 8, which is again six tokens back. So a head that copies attends to the token six
positions back before each digit of the second number. The numbers below are the mean of this weight over the 200 new
lines. Evenly spread attention would give about 0.1.
"""

# %%
weights = model.attention_weights(tokens, layers=range(model.config.n_layers))  # (L, B, H, T, T)

rows = torch.arange(7, 13)  # the space, and the second number without its last digit
columns = rows - 6  # the first number
copying = weights[..., rows, columns].mean(dim=(1, 3))  # (L, H)

for layer in range(model.config.n_layers):
    for head in range(model.config.n_heads):
        share = copying[layer, head].item()
        print(f"layer {layer}, head {head}: {share:.2f} of the attention is six tokens back")

# %% [markdown]
"""
The picture shows the attention of all heads on the first new line. Each row is the token that the model has just read.
Each column is a token that the head can look at. Dark squares are large weights, and later tokens are grey.

Find the head with the highest number above. Its map has a diagonal of dark squares in the lower left: the row of the
space points to the first digit, the next row points to the second digit, and so on. The random initial weights decide
which head learns to copy. Other heads often look at the last line break or space, which shows whether the model is in
the first or the second half of the line.

The program saves the picture as `attention.png` in the folder of the tour.
"""

# %%
maps = {}
for layer in range(model.config.n_layers):
    for head in range(model.config.n_heads):
        maps[layer, head] = weights[layer, 0, head].numpy()  # (T, T) of the first line

figure = attention_maps(maps, labels=lines[0][:-1], title="a line of a new number")
figure.savefig("attention.png")

# %% tags=["active-ipynb"]
# %matplotlib inline
# figure

# %% [markdown]
"""
## Sample

`gptmini.generate_stream` continues a prompt and yields each piece of text as soon as it is certain. The prompts are
four of the new numbers. The model should repeat each number.
"""

# %%
for number in new_numbers[:4]:
    print(f"{number} ", end="")
    prompt = f"\n{number} "
    for piece in gptmini.generate_stream(model, tokenizer, prompt, max_new_tokens=6):
        print(piece.text, end="", flush=True)
    print()

# %% [markdown]
"""
If the prompt is only a line break, the model first invents a number, one random digit at a time, and then copies it.
Another `seed` gives other numbers.
"""

# %%
for piece in gptmini.generate_stream(model, tokenizer, "\n", max_new_tokens=42, seed=2):
    print(piece.text, end="", flush=True)

# %% [markdown]
"""
## Next steps

- Set `trainer.max_steps=60` and run the tour again. Which characters of a line already have a low loss? What does the
  model write as the second number?
- Train on your own text: run `gptmini train my.txt`, or call `gptmini.train("my.txt")` in Python.
- Run `tensorboard --logdir runs` in the folder that is printed below, to see the curves and samples of the run.
- Read `examples/sample_from_python.py`, a short program that loads a run folder and prints a sample.
"""

# %%
print(f"everything is in {Path.cwd()}")
