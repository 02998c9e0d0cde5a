"""Write 2,872 small chats to train on (chats.jsonl), and 200 other chats to try afterwards (questions.jsonl)."""

import itertools
import json
import random
from pathlib import Path

NAMES = "Ada Ben Cleo Dan Eve Finn Gina Hugo Ida Jan Kim Leo Mia Noah Ora Paul"
THINGS = "hat cup key map bag lamp book coat ball drum fork bell rope shoe clock brush"
PLACES = "garden kitchen attic cellar garage office hall shed barn tower yard porch"

draw = random.Random(1)
lines = []
for name, thing, place in itertools.product(NAMES.split(), THINGS.split(), PLACES.split()):
    asked = {
        "Where is it?": f"In the {place}.",
        "Whose is it?": f"It is {name}'s.",
        "What is it?": f"It is a {thing}.",
    }
    texts = [
        text
        for question in draw.sample(list(asked), len(asked))
        for text in (question, asked[question])
    ]
    texts[0] = f"{name} left a {thing} in the {place}. {texts[0]}"
    messages = [
        {"role": ["user", "assistant"][i % 2], "content": text} for i, text in enumerate(texts)
    ]
    lines.append(json.dumps({"messages": messages}) + "\n")
draw.shuffle(lines)
Path("chats.jsonl").write_text("".join(lines[200:]))
Path("questions.jsonl").write_text("".join(lines[:200]))
