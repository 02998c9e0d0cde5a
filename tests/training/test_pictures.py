"""The images and tables of a run show the right numbers."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from gptmini.data import prepare
from gptmini.model import GPTConfig, new_gpt
from gptmini.report import drawing
from gptmini.report.tables import comparison, config_table, data_card, leaves, model_table
from gptmini.system.errors import UserError
from gptmini.tokenizer import byte
from gptmini.training.callbacks.pictures import Pictures
from sizes import GPT2
from toys import Documents
from training.watchers import Seen

PICTURES = {"layers": [0, -1], "heads": None, "text": None, "max_tokens": 5}
# The tables and maps below show these sizes.
CONFIG = GPT2 | {"vocab_size": 257, "d_model": 12, "n_heads": 3}


def pictures(**changes):
    return Pictures(**PICTURES | changes)


@pytest.mark.slow
def test_maps_show_each_weight_under_its_tokens_and_grey_the_future(recwarn):
    # More maps than fit in a row, and labels with characters that are special to matplotlib.
    labels = [" cat", "\n", "$", "中", "a" * 99, "\x0b\u200b"]
    shown_labels = ["␣cat", "⏎", r"\$", "U+4E2D", "aaaaaaaaaaa…", r"\x0b\u200b"]
    torch.manual_seed(0)
    maps = {(1, head): torch.rand(6, 6).tril().numpy() for head in range(5)}
    figure = drawing.attention_maps(maps, labels, "attention")

    for axes, (place, weights) in zip(figure.axes, maps.items(), strict=False):
        (image,) = axes.images
        shown = image.get_array()
        assert axes.get_title() == f"layer {place[0]}, head {place[1]}"
        np.testing.assert_array_equal(shown.mask, np.triu(np.ones((6, 6), bool), 1))
        np.testing.assert_array_equal(shown.data, weights)

    first = figure.axes[0]
    last_of_column = figure.axes[4]
    assert [label.get_text() for label in first.get_yticklabels()] == shown_labels
    assert [label.get_text() for label in last_of_column.get_xticklabels()] == shown_labels

    drawn = np.asarray(Image.open(io.BytesIO(drawing.png(figure))))
    width, height = figure.get_size_inches()
    assert drawn.shape[:2] == (round(100 * height), round(100 * width))
    messages = [str(warning.message) for warning in recwarn]
    assert [message for message in messages if "Glyph" in message] == []


def test_nothing_is_drawn_where_no_logger_takes_images(train, monkeypatch):
    drawn = []
    monkeypatch.setattr(drawing, "attention_maps", lambda *arguments: drawn.append(arguments))
    train(max_steps=1, callbacks=[pictures()], loggers=[Seen()])
    assert drawn == []


@pytest.mark.slow
def test_a_chart_shows_every_point_and_turns_to_a_logarithm_where_one_value_dwarfs_the_others():
    plain = drawing.curves({("", ""): [(1, 3.0), (5, 2.0)]}, "loss").axes[0]
    assert plain.lines[0].get_xydata().tolist() == [[1, 3.0], [5, 2.0]]
    assert (plain.get_yscale(), plain.get_legend()) == ("linear", None)

    gap = drawing.curves({("", ""): [(1, -0.2), (2, 0.01), (3, 0.02), (4, 0.6)]}, "gap").axes[0]
    assert gap.get_yscale() == "linear"  # a logarithmic scale would hide values below 0

    of_two_runs = {
        ("a", "train"): [(1, 500.0), (2, 0.0)],
        ("b", "train"): [(1, 5.0), (2, 4.0)],
    }
    figure = drawing.curves(of_two_runs, "ms")
    assert figure.axes[0].get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [" a train", " b train"]
    assert b"<svg" in drawing.svg(figure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": [0, 200]}, r"callbacks\.pictures\.layers must be from -100 to 99"),
        ({"heads": [-4]}, r"callbacks\.pictures\.heads must be from -3 to 2"),
        ({"layers": None}, "at most 256 .* got 300"),
    ],
)
def test_maps_that_the_model_has_not_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        pictures(**changes).check(GPTConfig(**CONFIG | {"n_layers": 100}))


@pytest.mark.parametrize(
    ("layers", "heads", "places"),
    [(None, [2], [(0, 2), (1, 2)]), ([-1], [0, -1], [(1, 0), (1, 2)])],
)
def test_maps_are_of_the_layers_and_heads_that_were_chosen(layers, heads, places):
    store = SimpleNamespace(tokenizer=byte([]))
    model = new_gpt(GPTConfig(**CONFIG), seed=1).eval()
    module = SimpleNamespace(model=model, device="cpu", store=store)
    shown = pictures(layers=layers, heads=heads, text="abcdefgh")
    shown.setup(None, module, stage="fit")
    maps, labels = shown._attention(module.model, module)

    # The tests of interop compare attention_weights with Hugging Face's.
    tokens = torch.tensor([[97, 98, 99, 100, 101]])
    weights = module.model.attention_weights(tokens, [0, 1])[:, 0]  # (N, H, T, T)
    assert labels == list("abcde")
    assert list(maps) == places
    for (layer, head), drawn in maps.items():
        torch.testing.assert_close(torch.from_numpy(drawn), weights[layer, head])


@pytest.mark.parametrize("tied", [True, False])
def test_the_models_table_adds_up(tied):
    model = new_gpt(GPTConfig(**CONFIG | {"tie_embeddings": tied}), seed=1)
    _, *rows, total = model_table(model)
    assert total == ["all", "", "", f"{model.n_parameters:,}", "100%"]
    assert sum(int(row[3].replace(",", "")) for row in rows) == model.n_parameters

    # The embedding has 320 rows with padding. The padding is not counted.
    by_name = {row[0]: row for row in rows}
    assert by_name["embedding.weight"][1:4] == ["257 x 12", "1", "3,084"]
    assert by_name["blocks.*.attention.qkv.weight"][1:4] == ["36 x 12", "2", "864"]
    assert ("unembedding.weight" in by_name) != tied


SOURCE = {"corpus": "plays", "val_fraction": 0.25, "files": ["aa11", "bb22"]}
PLAYS = Documents(["To be", "or not"], ["that"], name="plays", source=SOURCE)


def test_the_data_card_says_where_tokens_come_from_and_how_many_there_are(tmp_path):
    store, _ = prepare(PLAYS, byte, tmp_path)
    card = dict(data_card(store)[1:])

    assert card["source"] == "plays"
    assert card["val_fraction"] == "0.25"
    assert card["files"] == "2; sha256 of the first aa11"
    assert card["tokenizer"] == "byte"
    # An end-of-text token follows each document.
    assert card["train"] == "2 documents, 11 bytes, 13 tokens, 0.846 bytes a token"
    assert card["val"] == "1 documents, 4 bytes, 5 tokens, 0.800 bytes a token"


def test_runs_are_compared_by_what_was_changed_first(tmp_path):
    store, _ = prepare(PLAYS, byte, tmp_path)
    model = new_gpt(GPTConfig(**CONFIG), seed=1)
    config = {
        "seed": 1,
        "name": "a",
        "model": {"n_layers": 2, "bias": True},
        "optimizer": {"_target_": "gptmini.optim.groups.adamw", "lr": 0.01},
        "schedule": {"_target_": "gptmini.optim.schedules.cosine"},
    }
    overrides = ["optimizer.lr=0.01", "+experiment=mine", "name=a", "callbacks.pictures=null"]

    values, changed, others = comparison(config, store, model, overrides)

    assert changed == ["overrides", "optimizer.lr", "experiment", "callbacks.pictures"]
    assert values["experiment"] == "mine"
    assert values["optimizer.lr"] == 0.01
    assert values["overrides"] == " ".join(overrides)
    assert values["tokenizer"] == "byte"
    assert values["parameters"] == model.n_parameters
    assert others == ["parameters", "seed", "tokenizer"]  # the keys that this configuration has
    assert dict(leaves(config)).items() <= values.items()
    assert config_table(config)[:5] == [
        ["key", "value"],
        ["seed", "1"],
        ["name", "a"],
        ["model.n_layers", "2"],
        ["model.bias", "true"],
    ]
