"""Exported models in lm-evaluation-harness, transformers, llama.cpp and MLX, against gptmini itself.

- --harness-python names a Python with lm-evaluation-harness: `pip install 'lm_eval[hf]'`.
- --llama names a folder with the llama.cpp of npm's package node-llama-cpp, which brings a built library:
  `npm install --ignore-scripts node-llama-cpp`.
- --mlx-python names a Python with mlx-lm: `pip install 'mlx[cpu]' mlx-lm`.
"""

import argparse
import json
import math
import random
import statistics
import tempfile
from pathlib import Path

import torch

import gptmini
from gptmini.commands.evaluate import open_model
from gptmini.evaluation.texts import PreparedText, TextFiles
from gptmini.runs import find_checkpoint

from .harness import GPTMINI, Table, given, output_of, positive

# A task of lm-evaluation-harness on a local file, as its guide for new tasks describes them.
TASK = """
task: held_out
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""

# The loss that transformers computes of windows of ids, each with labels of its own ids.
TRANSFORMERS = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
folder, file = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
nats, n_tokens = 0.0, 0
with torch.no_grad():
    for window in json.load(open(file)):
        ids = torch.tensor([window])
        nats += model(ids, labels=ids).loss.item() * (len(window) - 1)
        n_tokens += len(window) - 1
print(json.dumps(nats / n_tokens))
"""

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


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--run", default="runs/pydoc", help="run to export (default: %(default)s)")
    add("--documents", type=positive, default=100, help="held-out documents of the part harness")
    add("--harness-python", help="a Python with lm_eval and transformers")
    add("--llama", type=Path, help="folder with node_modules/node-llama-cpp")
    add("--mlx-python", help="a Python with mlx and mlx-lm")


# lm-evaluation-harness and transformers


def compare_harness(table: Table, arguments: argparse.Namespace) -> None:
    """Compare figures of held-out documents with those of both."""
    python = given(arguments, "harness_python")
    n_documents = arguments.documents
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(arguments.run, folder / "exported")
        file = folder / "held_out.jsonl"
        lines = [json.dumps({"text": text}) for text in held_out(arguments.run)[:n_documents]]
        file.write_text("\n".join(lines))

        of_documents = evaluate(arguments.run, file, "--per-document")
        of_stream = evaluate(arguments.run, file)
        theirs = run_harness(python, folder, file)
        loss = loss_of_transformers(python, arguments.run, folder, file)

    for metric, value in theirs.items():
        what = f"{metric.replace('_', ' ')} of {n_documents} documents: relative difference"
        apart = abs(of_documents[metric]["value"] / value - 1)
        table.add(f"{what} from lm-evaluation-harness", apart, goal="at most 1e-3")
    what = f"loss of {n_documents} documents: relative difference from transformers"
    table.add(what, abs(of_stream["loss"]["value"] / loss - 1), goal="at most 1e-4")


def export(run: str, to: Path, *options: str) -> None:
    """Export a run's model as a user does, into a folder or a GGUF file."""
    output_of([*GPTMINI, "export", run, str(to), *options], cwd=Path.cwd())


def held_out(run: str) -> list[str]:
    """The held-out documents of the text that a run was trained on."""
    trained = open_model(find_checkpoint(run))
    assert trained.data is not None  # a run names its prepared folder
    documents = PreparedText(trained.data, "val", max_tokens=None).documents(trained.tokenizer)
    return [trained.tokenizer.decode(ids.tolist()) for ids in documents]


def evaluate(run: str, file: Path, *options: str) -> dict:
    """What gptmini evaluate prints of a text."""
    command = [*GPTMINI, "evaluate", run, "--text", str(file), "--json", *options]
    return json.loads(output_of(command, cwd=Path.cwd()))["models"][0]


def run_harness(python: str, folder: Path, file: Path) -> dict[str, float]:
    """The figures of lm-evaluation-harness for the documents of a file."""
    (folder / "tasks").mkdir()
    (folder / "tasks" / "held_out.yaml").write_text(TASK.format(file=file))
    command = [python, "-m", "lm_eval", "--model", "hf"]
    command += ["--model_args", f"pretrained={folder / 'exported'},dtype=float32"]
    command += ["--tasks", "held_out", "--include_path", str(folder / "tasks")]
    command += ["--device", "cpu", "--batch_size", "8", "--output_path", str(folder / "results")]
    output_of(command, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(folder / "hub"))
    (results,) = (folder / "results").rglob("results_*.json")
    figures = json.loads(results.read_text())["results"]["held_out"]
    return {name: figures[f"{name},none"] for name in ("bits_per_byte", "word_perplexity")}


def loss_of_transformers(python: str, run: str, folder: Path, file: Path) -> float:
    """The loss that transformers computes of the documents in one stream, in gptmini's windows."""
    model, tokenizer = gptmini.load(run)
    text = TextFiles([file], "text", max_tokens=None)
    (stream,) = text.streams(tokenizer)
    length = model.config.context_length
    windows = []
    for start in range(0, len(stream.ids) - 1, length):
        windows.append([int(token) for token in stream.ids[start : start + length + 1]])
    path = folder / "windows.json"
    path.write_text(json.dumps(windows))
    program = [python, "-c", TRANSFORMERS, str(folder / "exported"), str(path)]
    return json.loads(output_of(program))


# llama.cpp and MLX


@torch.no_grad()
def task_of(run: str) -> dict:
    """What every program is to compute, and what gptmini computes."""
    model, tokenizer = gptmini.load(run)
    draw = random.Random(0)
    parts = [*LATIN, *OTHERS, *SPACES]
    texts = ["".join(draw.choices(parts, k=draw.randrange(1, 15))) for _ in range(N_TEXTS)]

    ids = tokenizer.encode("\n".join(held_out(run)))
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


def compare_llama(table: Table, arguments: argparse.Namespace) -> None:
    """Compare ids, greedy text and perplexity with llama.cpp, in float32 and in 8 bits."""
    place = given(arguments, "llama")
    task = task_of(arguments.run)
    # Node looks for a module's libraries beside the module, not where the command is typed.
    program = place / "gptmini-exported.mjs"
    program.write_text(LLAMA, encoding="utf-8")
    try:
        for dtype in ("fp32", "q8_0"):
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder, "model.gguf")
                export(arguments.run, model, "--dtype", dtype)
                result = run_program(["node", program.name], task, model, cwd=place)
            name = f"llama.cpp, {dtype}"
            report(table, name, task, result)
            ratio = math.exp(statistics.mean(result["nats"]) - task["nats"])
            table.add(f"{name}: perplexity, divided by gptmini's", ratio)
    finally:
        program.unlink()


def compare_mlx(table: Table, arguments: argparse.Namespace) -> None:
    """Compare ids and greedy text with MLX."""
    python = given(arguments, "mlx_python")
    task = task_of(arguments.run)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "exported")
        export(arguments.run, model)
        result = run_program([python, "-c", MLX], task, model, cwd=Path(folder))
    report(table, "MLX, fp32", task, result)


def run_program(command: list[str], task: dict, model: Path, *, cwd: Path) -> dict:
    """What a program makes of a task for an exported model, which it leaves in the file that holds the task."""
    path = model.with_name("task.json")
    path.write_text(json.dumps(task | {"model": str(model)}), encoding="utf-8")
    output_of([*command, str(path)], cwd=cwd)
    return json.loads(path.read_text(encoding="utf-8"))


def report(table: Table, name: str, task: dict, result: dict) -> None:
    """Add rows of how many of the ids and of the drawn texts are the same."""
    for key, what, n in (
        ("ids", f"of {N_TEXTS:,} odd texts, those with the same ids", N_TEXTS),
        ("drawn", f"of {N_PROMPTS} greedy texts, those that are the same", N_PROMPTS),
    ):
        same = sum(one == other for one, other in zip(task[key], result[key], strict=True))
        table.add(f"{name}: {what}", same, goal=str(n))


PARTS = {"harness": compare_harness, "llama": compare_llama, "mlx": compare_mlx}
