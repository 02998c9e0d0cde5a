"""Each common slip gives one line with the key, the option or the command to use, and exit code 2."""

import shlex
import sys

import pytest

from gptmini.commands import main
from gptmini.user_error import UserError

# Words of a command line, and words of the error line: the key and the value, the option or the command to use.
SLIPS = [
    # Keys as options.
    ("train --lr 0.1", "optimizer.lr=0.1"),
    ("train -lr 0.1", "optimizer.lr=0.1"),
    ("train --max-steps=100", "trainer.max_steps=100"),
    ("train --max_step 100", "trainer.max_steps=100"),
    ("train --batch-size 8", "trainer.batch_size=8"),
    ("train --epoch 3", "epochs=3"),
    ("train --steps 100", "trainer.max_steps=100"),
    ("train --model tiny", "model=tiny"),
    ("train --resume runs/dna", "resume=runs/dna"),
    ("train --gpu", "trainer.device=cuda"),
    ("train --cpu my.txt", "trainer.device=cpu"),
    ("train --lr -0.1", "optimizer.lr=-0.1"),
    ("train --seed --cfg job", "seed=VALUE"),
    ("train --data 'my file.txt'", "data=text 'data.path=my file.txt'"),
    ("train --data -", "data=text data.path=-"),
    ("train --sweep 3", "--sweep --help"),
    ("train -n 100", "-n --help"),
    ("train --runs 3", "runs_dir=3"),
    ("prepare my.txt --dry-run", "gptmini train --dry-run"),
    ("train --data my.txt", "data=text data.path=my.txt"),
    ("train --text my.txt epochs=2", "data=text data.path=my.txt"),
    ("sweep --jobs 2 --learning-rate 0.1,0.2", "optimizer.lr=0.1,0.2"),
    # Keys by another name.
    ("train epoch=3", "epochs"),
    ("train lr=0.1", "optimizer.lr"),
    ("train learning_rate=0.1", "optimizer.lr"),
    ("train steps=100", "trainer.max_steps"),
    ("train max_iters=100", "trainer.max_steps"),
    ("train block_size=64", "model.context_length"),
    ("train n_embd=64", "model.d_model"),
    ("train text=my.txt", "data.path"),
    ("train trainer.lr=0.1", "optimizer.lr"),
    ("train model.n_embd=64", "model.d_model"),
    ("train trainer.epochs=2", "mean epochs?"),
    ("train data.text=my.txt", "data.path"),
    ("train my.txt wandb_log=True", "logger=wandb"),
    ("train my.txt --wandb", "logger=wandb"),
    ("train my.txt --early-stopping", "callbacks=early_stopping"),
    # Texts and runs.
    ("train data=dna.txt", "data.path=dna.txt"),
    ("train data=./new/dna.txt", "data.path=./new/dna.txt"),
    ("train data='my file.txt'", "data=text 'data.path=my file.txt'"),
    ("my.txt", "gptmini train my.txt"),
    ("train my.tx", "my.txt"),
    ("train my file.txt", "'my' spaces"),
    ("train my.txt data=pydoc", "my.txt data=pydoc"),
    ("train my.txt data.path=dna.txt", "my.txt data.path=dna.txt"),
    ("train program", "program UTF-8 0x00 data.encoding"),
    ("train runs/dna/1", "resume=runs/dna/1 init_from=runs/dna/1"),
    ("train 'a run'", "'resume=a run' 'init_from=a run'"),
    ("sample dna", "runs/dna"),
    ("train resume=runs/dba", "runs/dna"),
    ("sample", "runs/latest"),
    ("sample runs/dna Hi", "--prompt Hi"),
    ("sample runs/dna 'Once upon' a --seed 3", "--prompt 'Once upon a'"),
    ("chat runs/dna 'Who is it?'", "echo 'Who is it?' | gptmini chat"),
    ("chat runs/dna --ra", "--ra --raw"),
    ("sample runs/dna --temp 0", "--temp --temperature"),
    ("chat runs/dna --temp 1", "--temp --temperature"),
    ("train tokenizr.path=x", "tokenizr.path tokenizer.path"),
    ("train callback.samples.seed=3", "callback.samples.seed callbacks.samples.seed"),
    ("export runs/dna model.onnx", ".onnx .gguf model.onnx"),
    # Options of groups.
    ("train tiny", "model=tiny"),
    ("train optimizer=adam", "optimizer=adamw"),
    ("train model", "model=NAME"),
    ("train seed", "seed=VALUE"),
    ("train data.path dna.txt", "data.path=VALUE"),
    ("train experiment=wide", "experiment/wide.yaml --config-dir"),
    # Spaces, and values.
    ("train data.path = my.txt", "data.path = my.txt KEY=VALUE"),
    ("train 'name = my run'", "'name=my run'"),
    ("train seed =3", "seed =3 KEY=VALUE"),
    ("prepare tokenizer.vocab_size= 300", "tokenizer.vocab_size= 300 KEY=VALUE"),
    ("train my.txt freeze=[embedding, norm]", "norm] 'key=[a, b]'"),
    ("train budget=ten", "budget 10m 'ten'"),
    ("train epochs=two", "epochs number 'two'"),
    ("train epochs=2 budget=10m", "epochs= budget="),
    ("sweep epochs=2 trainer.max_steps=4,5", "epochs= trainer.max_steps="),
]


@pytest.fixture
def error_of(script, tmp_path, monkeypatch, capsys):
    """Return a function that returns the error line of a command line. The folder has texts and a run."""
    for name in ("dna.txt", "my file.txt"):
        (tmp_path / name).write_text("acgt" * 100)
    # The first bytes of a Linux program.
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01")
    for name in ("a run/config.yaml", "runs/dna/1/config.yaml"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("version: 0.3.0\ntyped: []\n")

    def run(typed):
        monkeypatch.setattr(sys, "argv", ["gptmini", *shlex.split(typed)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        return capsys.readouterr().err

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "words"), SLIPS)
def test_a_slip_is_answered_with_the_words_to_write(error_of, typed, words):
    if typed.startswith("sweep"):
        pytest.importorskip("optuna")
    line = error_of(typed)
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    for word in words.split(" "):
        assert word in line, line


@pytest.mark.slow
def test_a_name_that_is_not_on_the_hub_means_a_run(error_of, monkeypatch):
    def refuse(name):
        raise UserError(f"the hub does not have {name}")

    monkeypatch.setattr("gptmini.interop.hub_models.download_model", refuse)
    assert "runs/dna" in error_of("train init_from=dna")
    assert "the hub does not have mine/dna" in error_of("train init_from=mine/dna")
