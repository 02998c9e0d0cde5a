"""gptmini's figures of held-out documents, against lm-evaluation-harness and transformers on the exported model.

Make an environment with `pip install 'lm_eval[hf]'`, and name its Python with --python.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from gptmini.checkpoint.file import read_checkpoint
from gptmini.commands.errors import Parser
from gptmini.commands.evaluate import open_model
from gptmini.commands.export import SAMPLING, training_of
from gptmini.evaluation.texts import PreparedText, TextFiles
from gptmini.interop import write_folder
from gptmini.runs import find_checkpoint
from gptmini.user_error import UserError

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


def main() -> None:
    """Export a run, evaluate it with each program, and print a line for each figure."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = find_checkpoint(arguments.run)
        trained = open_model(checkpoint)
        write_folder(
            folder / "exported",
            trained.model,
            trained.tokenizer,
            training_of(checkpoint, read_checkpoint(checkpoint)),
            sampling=SAMPLING,
        )
        documents = held_out_documents(arguments.run, arguments.documents)
        file = folder / "held_out.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))

        ours = evaluate(arguments.run, file, "--per-document")["models"][0]
        theirs = run_harness(arguments.python, folder, file)
        for metric, value in theirs.items():
            report(metric, ours[metric]["value"], value)

        stream = evaluate(arguments.run, file)["models"][0]["loss"]["value"]
        report("loss of transformers", stream, loss_of_transformers(arguments, folder, file))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="benchmark.py harness", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", default="runs/pydoc", help="run to evaluate (default: %(default)s)"
    )
    parser.add_argument("--python", required=True, help="a Python with lm_eval and transformers")
    parser.add_argument(
        "--documents",
        type=int,
        default=100,
        help="held-out documents to evaluate on (default: %(default)s)",
    )
    return parser.parse_args()


def held_out_documents(run: str, n_documents: int) -> list[str]:
    """The first held-out documents of the text that a run was trained on."""
    trained = open_model(find_checkpoint(run))
    assert trained.data is not None  # a run names its prepared folder
    text = PreparedText(trained.data, "val", max_tokens=None)
    documents = text.documents(trained.tokenizer)[:n_documents]
    return [trained.tokenizer.decode(ids.tolist()) for ids in documents]


def evaluate(run: str, file: Path, *options: str) -> dict:
    """What gptmini evaluate prints of a text."""
    command = ["gptmini", "evaluate", run, "--text", str(file), "--json", *options]
    return json.loads(output_of(command))


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


def loss_of_transformers(arguments: argparse.Namespace, folder: Path, file: Path) -> float:
    """The loss that transformers computes of the documents in one stream, in gptmini's windows."""
    trained = open_model(find_checkpoint(arguments.run))
    text = TextFiles([file], "text", max_tokens=None)
    (stream,) = text.streams(trained.tokenizer)
    length = trained.model.config.context_length
    windows = []
    for start in range(0, len(stream.ids) - 1, length):
        window = np.asarray(stream.ids[start : start + length + 1])
        windows.append(window.tolist())
    path = folder / "windows.json"
    path.write_text(json.dumps(windows))
    program = [arguments.python, "-c", TRANSFORMERS, str(folder / "exported"), str(path)]
    return json.loads(output_of(program))


def output_of(command: list[str], **variables: str) -> str:
    """What a program prints; UserError if it fails."""
    result = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise UserError(f"{command[0]} failed: {result.stderr[-500:]}")
    return result.stdout


def report(name: str, ours: float, theirs: float) -> None:
    """Print a figure of both, and how far they are apart."""
    print(f"{name:22} gptmini {ours:.6f}, theirs {theirs:.6f}, {abs(ours / theirs - 1):.1e} apart")


if __name__ == "__main__":
    main()
