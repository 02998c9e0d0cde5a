"""Exported models in programs of others: llama.cpp and MLX, against gptmini itself.

llama.cpp is the one in npm's package node-llama-cpp, which brings a built library: in an empty folder, type
`npm install --ignore-scripts node-llama-cpp`, and name the folder with --llama. MLX is mlx-lm: make an environment with
`pip install 'mlx[cpu]' mlx-lm`, and name its Python with --mlx-python.
"""

import argparse
import json
import math
import random
import subprocess
import tempfile
from pathlib import Path

import torch

import gptmini
from gptmini.checkpoint.file import read_checkpoint
from gptmini.commands.errors import Parser
from gptmini.commands.export import SAMPLING, training_of
from gptmini.interop import write_folder, write_gguf
from gptmini.model import GPT
from gptmini.runs import find_checkpoint
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

N_GREEDY = 64  # tokens that are drawn
N_TEXTS = 1000  # texts whose ids are compared
N_PROMPTS = 5
PROMPT_LENGTH = 16  # tokens
# Parts of odd texts: words, numbers, contractions, white space of all kinds, other scripts, combining marks, emoji.
LATIN = ("the", " The", "'s", "'LL", "'", "é", "e\u0301", " naïve", "\u017f", "x" * 40)
OTHERS = (" 1984", "3.14", "==", "_", "<|", "|>", "日本語", "Привет", "🙂", "👨\u200d👩")
SPACES = (" ", "  ", "\n", "\n\n   ", "\t", "\u3000", "\xa0")

LLAMA = """
import {getLlama, LlamaLogLevel} from "node-llama-cpp";
import fs from "fs";
const task = JSON.parse(fs.readFileSync(process.argv[2]));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: task.model, useMmap: false});
const context = await model.createContext({contextSize: task.contextLength, threads: 2});
const sequence = context.getSequence();
const result = {ids: task.texts.map((text) => model.tokenize(text, false)), drawn: [], nats: []};
for (const prompt of task.prompts) {
  await sequence.clearHistory();
  const drawn = [];
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    drawn.push(token);
    if (drawn.length >= task.nGreedy) break;
  }
  result.drawn.push(drawn);
}
for (const window of task.windows) {
  await sequence.clearHistory();
  const wanted = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};
  const input = window.slice(0, -1).map((token) => [token, wanted]);
  const output = await sequence.controlledEvaluate(input);
  output.forEach((item, i) => result.nats.push(-Math.log(item.next.probabilities.get(window[i + 1]) ?? 0)));
}
fs.writeFileSync(process.argv[2], JSON.stringify(result));
process.exit(0);
"""

MLX = """
import json, sys
import mlx.core as mx
from mlx_lm import load
task = json.load(open(sys.argv[1]))
mx.set_default_device(mx.cpu)
model, tokenizer = load(task["model"])
drawn = []
for prompt in task["prompts"]:
    tokens = list(prompt)
    for _ in range(task["nGreedy"]):
        tokens.append(int(mx.argmax(model(mx.array([tokens]))[0, -1])))
    drawn.append(tokens[len(prompt):])
ids = [tokenizer.encode(text, add_special_tokens=False) for text in task["texts"]]
json.dump({"drawn": drawn, "ids": ids}, open(sys.argv[1], "w"))
"""


def main() -> None:
    """Export the model of a run, run it in each program that is named, and print a line for each comparison."""
    arguments = parse_arguments()
    model, tokenizer = gptmini.load(arguments.run)
    task = task_of(model, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.llama is not None:
            compare_llama(model, tokenizer, task, Path(folder), arguments.llama)
        if arguments.mlx_python is not None:
            compare_mlx(arguments, model, tokenizer, task, Path(folder))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="benchmark.py runtimes", description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/pydoc", help="run to export (default: %(default)s)")
    parser.add_argument("--llama", type=Path, help="folder with node_modules/node-llama-cpp")
    parser.add_argument("--mlx-python", help="a Python with mlx and mlx-lm")
    arguments = parser.parse_args()
    if arguments.llama is None and arguments.mlx_python is None:
        parser.error("name at least one of --llama and --mlx-python")
    return arguments


@torch.no_grad()
def task_of(model: GPT, tokenizer: Tokenizer) -> dict:
    """What every program is to compute, and what gptmini computes."""
    draw = random.Random(0)
    parts = [*LATIN, *OTHERS, *SPACES]
    texts = ["".join(draw.choices(parts, k=draw.randrange(1, 15))) for _ in range(N_TEXTS)]

    text = Path(__file__).read_text(encoding="utf-8")
    ids = tokenizer.encode(text)
    length = model.config.context_length
    windows = [ids[first : first + length] for first in range(0, 4 * length, length)]

    prompts = [ids[first : first + PROMPT_LENGTH] for first in range(0, N_PROMPTS * 50, 50)]
    drawn = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        for _ in range(min(N_GREEDY, length - PROMPT_LENGTH)):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
        drawn.append(tokens[0, PROMPT_LENGTH:].tolist())

    nats = 0.0
    for window in windows:
        losses = torch.nn.functional.cross_entropy(
            model(torch.tensor([window[:-1]]))[0], torch.tensor(window[1:]), reduction="sum"
        )
        nats += losses.item()
    return {
        "texts": texts,
        "ids": [tokenizer.encode(some) for some in texts],
        "prompts": prompts,
        "drawn": drawn,
        "nGreedy": len(drawn[0]),
        "contextLength": length,
        "windows": windows,
        "nats": nats / sum(len(window) - 1 for window in windows),
    }


def compare_llama(model: GPT, tokenizer: Tokenizer, task: dict, folder: Path, llama: Path) -> None:
    """Compare ids, greedy text and perplexity with llama.cpp, in float32 and in 8 bits."""
    program = llama / "gptmini-runtimes.mjs"
    program.write_text(LLAMA, encoding="utf-8")
    try:
        for dtype in ("fp32", "q8_0"):
            path = folder / f"{dtype}.gguf"
            write_gguf(path, model, tokenizer, name="mine", dtype=dtype)
            result = run(["node", program.name], task | {"model": str(path)}, folder, cwd=llama)
            report(f"llama.cpp, {dtype}", task, result)
            nats = sum(result["nats"]) / len(result["nats"])
            ratio = math.exp(nats - task["nats"])
            print(f"  perplexity {math.exp(nats):.4f}, divided by gptmini's: {ratio:.5f}")
    finally:
        program.unlink()


def compare_mlx(
    arguments: argparse.Namespace, model: GPT, tokenizer: Tokenizer, task: dict, folder: Path
) -> None:
    """Compare ids and greedy text with MLX."""
    checkpoint = find_checkpoint(arguments.run)
    training = training_of(checkpoint, read_checkpoint(checkpoint))
    write_folder(folder / "exported", model, tokenizer, training, sampling=SAMPLING)
    command = [arguments.mlx_python, "-c", MLX]
    report("MLX, fp32", task, run(command, task | {"model": str(folder / "exported")}, folder))


def run(command: list[str], task: dict, folder: Path, cwd: Path | None = None) -> dict:
    """What a program leaves in the file that holds its task."""
    path = folder / "task.json"
    path.write_text(json.dumps(task), encoding="utf-8")
    result = subprocess.run(
        [*command, str(path)], cwd=cwd, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise UserError(f"{command[0]} failed: {result.stderr[-500:]}")
    return json.loads(path.read_text(encoding="utf-8"))


def report(name: str, task: dict, result: dict) -> None:
    """Print how many of the ids and of the drawn texts are the same."""
    same_ids = sum(a == b for a, b in zip(task["ids"], result["ids"], strict=True))
    same_drawn = sum(a == b for a, b in zip(task["drawn"], result["drawn"], strict=True))
    print(
        f"{name}: ids of {same_ids:,} of {N_TEXTS:,} texts the same; {same_drawn} of {N_PROMPTS} greedy texts of "
        f"{task['nGreedy']} tokens the same",
        flush=True,
    )


if __name__ == "__main__":
    main()
