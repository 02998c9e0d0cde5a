"""Whole inputs, which the tests break: a checkpoint, and a run folder."""

import pytest
import torch

from fuzz.inputs import Made
from gptmini import tokenizer
from gptmini.checkpoint.file import header, write_checkpoint
from gptmini.commands.compose import compose
from gptmini.commands.train import train
from gptmini.model import GPTConfig, new_gpt
from gptmini.training import Stopping
from gptmini.training.stopping import Ending
from sizes import GPT2, TALKATIVE
from toys import lines

# The tiny run, narrower still: its checkpoint is written and read hundreds of times.
SHORT = ("experiment=smoke", "data=text", "data.path=my.txt", "model.d_model=4", "console=quiet")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The working folder of all these tests, with a text in it."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("fuzz")
        (path / "my.txt").write_text(lines(40))
        patch.chdir(path)
        patch.delenv("GPTMINI_TRACEBACK", raising=False)
        yield path

    torch.set_num_threads(1)


# A model whose checkpoint is written and read hundreds of times.
SMALLEST = {"context_length": 5, "d_model": 4, "n_layers": 1, "n_heads": 2}


# Both models have every optional field at its default, which is what a configuration means that leaves it out.
@pytest.fixture(scope="module", params=[GPT2, TALKATIVE], ids=["learned", "rotary"])
def written(request, folder):
    """A checkpoint of the smallest model: what was written, and its bytes."""
    config = GPTConfig(**request.param | SMALLEST)
    path = folder / "best.ckpt"
    letters = tokenizer.CharTokenizer("abcdefghijk", end_of_text=False)
    model = new_gpt(config, seed=1)
    whole = {
        "gptmini": header(config, letters.to_dict(), step=7),
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
    }
    write_checkpoint(whole, path)
    return Made(path=path, whole=whole, content=path.read_bytes())


@pytest.fixture(scope="module")
def run(folder):
    """A finished run of four steps. From then on the commands do all but the training itself."""
    train(*compose("train", SHORT))

    (path,) = (folder / "runs" / "smoke").iterdir()
    text = (path / "config.yaml").read_text()
    checkpoint = torch.load(path / "checkpoints" / "last.ckpt", weights_only=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stopping, "fit_until_stopped", lambda *parts: Ending())
        patch.setattr("gptmini.training.run.link_latest", lambda *places: None)
        yield Made(path=path, text=text, checkpoint=checkpoint)
