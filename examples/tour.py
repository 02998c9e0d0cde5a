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

A GPT reads a text from left to right and predicts each next token. Attention is the part of a GPT that looks back at
the tokens before. This tour writes a text in which half of the digits can be predicted perfectly, but only by looking
back; trains a small GPT on that text; and then watches which tokens the GPT looks at, and what the GPT writes.

The tour takes about a quarter of a minute on one CPU core and needs no download. `examples/tour.ipynb` is a notebook,
and `python examples/tour.py` runs the same steps as a program.
"""

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
from gptmini.report.drawing import attention_maps, visible

# %% [markdown]
"""
Training leaves a run folder and prepared tokens in the current folder. The tour therefore moves into a new temporary
folder. To choose the folder yourself, set the environment variable `GPTMINI_TOUR` to its path before you start.
"""

# %% tags=["active-py"]
# Only the program has a command line, so the notebook leaves this cell out.
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
## A text with something to find

Each line of the text is a random number of six digits, a space, and the same number again. Of 4,200 different numbers,
4,000 make the text; the model never sees the other 200 during training, so that they can test what the model has
learned.
"""

# %%
draw = random.Random(1)  # a fixed seed: every reader gets the same numbers
numbers = [f"{number:06d}" for number in draw.sample(range(10**6), 4200)]
training_numbers = numbers[:4000]
new_numbers = numbers[4000:]

text = "".join(f"{number} {number}\n" for number in training_numbers)
Path("numbers.txt").write_text(text, newline="\n")
print(text[:42], end="")

# %% [markdown]
"""
How well can the next character of this text be predicted? The loss of a prediction is `-log(p)`, in nats, where `p` is
the probability that was given to the character that really came.

- A digit of the first number on a line is random. The best prediction gives each of the ten digits the probability 0.1,
  and the loss is log(10) = 2.30.
- A digit of the second number is certain for a reader who looks back at the first number. Its loss can be 0.
- The space and the line break are certain too, because every number has six digits.

A line has 14 characters, so a reader who looks back pays 6 x 2.30 / 14 = 0.99 nats a character on average. A reader who
knows the digits and the length of a number but cannot look back pays for twelve digits: 1.97 nats a character.
"""

# %%
loss_of_a_guess = math.log(10)
loss_with_a_look_back = 6 * loss_of_a_guess / 14
loss_without = 12 * loss_of_a_guess / 14
print(f"with a look back {loss_with_a_look_back:.2f}, without {loss_without:.2f} nats a character")

# %% [markdown]
"""
## Train

`gptmini.train` takes the same `key=value` settings as the command `gptmini train`. Whatever is not named here keeps its
value from the folder `configs/`. These settings make a GPT of two layers with two attention heads each, which reads 32
characters at a time and takes 300 optimizer steps.

The lines below say, from the top: how many tokens there are, how large the model is, which hardware is used and why,
where the run folder is, how the loss falls, and at the end how each validation went and a sample of the model's text.
"""

# %%
settings = [
    "data=text",
    "data.path=numbers.txt",
    "tokenizer=char",  # a token is one character
    "model=modern",
    "model.context_length=32",  # two whole lines fit
    "model.d_model=64",
    "model.n_layers=2",
    "model.n_heads=2",
    "trainer.max_steps=300",
    "trainer.global_batch_size=16",
    "trainer.val_every_steps=100",
    "trainer.val_tokens=4096",
    "trainer.threads=1",  # tensors this small are not worth sharing among CPU cores
    "callbacks.samples.max_new_tokens=42",  # three lines
    "callbacks.pictures=null",  # the tour draws its own
    "console=lines",
]
run = gptmini.train(*settings)

# %% [markdown]
"""
The validation loss lies far below the 1.97 nats of a reader who cannot look back. The loss stays somewhat above 0.99,
because validation cuts the text into windows of 32 characters. Most windows begin in the middle of a line, and nobody
can copy a digit from before the window.
"""

# %%
print(f"validation loss {run.best.loss:.2f} nats a character")

# %% [markdown]
"""
## The loss of each character of a line

A run folder is enough to load the model and its tokenizer. Here the model predicts the 200 lines of new numbers. Each
line comes with the line break before it, so that the model knows where the line begins. The bars show the mean loss of
each place in a line.

The six digits of the first number cost 2.30 nats each: the model has learned that they are random. Everything after
the first number costs almost nothing. The model has never seen these numbers, so it cannot have learned them by heart.
It copies them.
"""

# %%
model, tokenizer = gptmini.load(run.folder)

lines = [f"\n{number} {number}\n" for number in new_numbers]
ids = torch.tensor([tokenizer.encode(line) for line in lines])  # (200, 15)
tokens = ids[:, :-1]  # (200, 14): what the model reads
targets = ids[:, 1:]  # (200, 14): what comes next

with torch.no_grad():
    logits = model(tokens)  # (200, 14, V)
by_token = logits.transpose(1, 2)  # (200, V, 14): cross_entropy expects the vocabulary second
losses = F.cross_entropy(by_token, targets, reduction="none")  # (200, 14)

for character, loss in zip(lines[0][1:], losses.mean(dim=0).tolist(), strict=True):
    bar = "#" * round(10 * loss)
    print(f"{visible(character)} {loss:6.2f}  {bar}")

# %% [markdown]
"""
## What the heads look at

`model.attention_weights` returns how each head, at each token that it reads, spreads its attention over that token and
the tokens before. The weights at one token add up to 1.

Take the line `482137 482137`. When the model has read the space, it has to predict the digit 4, which stands six tokens
back. When the model has read that 4, it has to predict the digit 8, which again stands six tokens back. A head that
copies therefore attends to the token six places back whenever a digit of the second number comes next. The numbers
below are the mean of that weight over the 200 new lines. Attention that was spread evenly would give about 0.1.
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
The picture shows the attention of all heads over the first of the new lines. A row is the token that has just been
read, a column is a token that the head can look at, and a dark square is a large weight. Tokens that are still to come
are grey. Take the head with the highest number above, and look for a diagonal of dark squares in the lower left of its
map: the row of the space points to the first digit, the next row points to the second digit, and so on. Which head
copies depends on the random first weights of the model. Other heads often look at the last line break or space, which
tells in which half of the line the model is.

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

`gptmini.generate_stream` continues a prompt and yields each piece of text as soon as the piece is certain. The prompts
are four of the new numbers; the model should write each of them a second time.
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
Given nothing but a line break, the model first invents a number, digit by random digit, and then copies what it has
written. Another `seed` gives other numbers.
"""

# %%
for piece in gptmini.generate_stream(model, tokenizer, "\n", max_new_tokens=42, seed=2):
    print(piece.text, end="", flush=True)

# %% [markdown]
"""
## Go on

- Set `trainer.max_steps=60` and run the tour again. Which characters of a line have a low loss already? What does the
  model write as the second number?
- Train on a text of your own: `gptmini train data=text data.path=my.txt` is the command, and
  `gptmini.train("data=text", "data.path=my.txt")` is the same in Python.
- `tensorboard --logdir runs`, typed in the folder printed below, shows the curves and samples of the run.
- `python examples/sample_from_python.py` is the shortest program that loads a run folder and prints a sample.
"""

# %%
print(f"everything is in {Path.cwd()}")
