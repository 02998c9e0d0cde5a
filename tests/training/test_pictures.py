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
from gptmini.tokenizer import byte
from gptmini.training import MetricsLogger
from gptmini.training.callbacks.pictures import Pictures, write_embedding
from gptmini.training.callbacks.token_losses import TokenLosses, mispredicted
from gptmini.user_error import UserError
from sizes import GPT2
from toys import Documents
from training.watchers import Seen

PICTURES = {"layers": [0, -1], "heads": None, "text": None, "max_tokens": 5, "embedding_tokens": 7}
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


def test_nothing_is_drawn_if_no_token_of_this_process_counts(train, tmp_path, monkeypatch):
    """As with data.loss_on=answers on several devices."""
    none = TokenLosses(*np.zeros((4, 0), dtype=int))
    monkeypatch.setattr("gptmini.training.callbacks.pictures.joined", lambda batches: none)
    train(max_steps=1, callbacks=[pictures()], loggers=[MetricsLogger(tmp_path)])
    assert not (tmp_path / "pictures").exists()


def test_loss_by_position_is_the_mean_of_each_place():
    positions = np.array([0, 1, 2, 0, 1, 2, 0])
    losses = np.array([1.0, 2.0, 4.0, 3.0, 2.0, 0.0, 2.0])
    mean, smooth = drawing.loss_by_position(losses, positions, "loss").axes[0].lines
    assert mean.get_xdata().tolist() == [1, 2, 3]
    assert mean.get_ydata().tolist() == [2.0, 2.0, 2.0]

    mean, smooth = drawing.loss_by_position(np.arange(40.0), np.arange(40), "loss").axes[0].lines
    assert smooth.get_ydata()[20] == pytest.approx(20)  # the mean of 13 to 27
    assert smooth.get_ydata()[0] == pytest.approx(3.5)  # the mean of the first eight


def test_positions_without_a_token_are_left_out(recwarn):
    """As if the loss counted only answers."""
    positions = np.array([2, 2, 40, 60])
    losses = np.array([1.0, 2.0, 5.0, 0.5])
    mean, smooth = drawing.loss_by_position(losses, positions, "loss").axes[0].lines
    assert mean.get_xdata().tolist() == smooth.get_xdata().tolist() == [3, 41, 61]
    assert mean.get_ydata().tolist() == [1.5, 5.0, 0.5]
    assert smooth.get_ydata().tolist() == pytest.approx([1.5, 5.0, 0.5])
    assert not recwarn.list


@pytest.mark.parametrize("spread", [4.0, 1e-7, 0.0])
def test_the_histogram_counts_every_token_even_where_all_losses_are_one_number(spread):
    losses = np.array([0.5] * 30 + [0.5 + spread] * 10, dtype=np.float32)
    axes = drawing.loss_histogram(losses, "loss").axes[0]
    heights = axes.patches[0].get_data().values
    assert heights[0] == pytest.approx(75 if spread == 4 else 100)
    assert sum(heights) == pytest.approx(100)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["median 0.50", f"mean {0.5 + spread / 4:.2f}"]


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


def test_mispredicted_tokens_are_those_that_cost_most_in_all():
    found = TokenLosses(
        losses=np.array([1.0, 2.0, 3.0, 0.5, 0.5, 5.0]),
        positions=np.arange(6),
        targets=np.array([7, 7, 7, 8, 8, 9]),
        likeliest=np.array([7, 9, 9, 8, 8, 7]),
    )
    heading, *rows = mispredicted(found, lambda token: {7: "\n", 8: "the", 9: "|x"}[token])

    assert heading == [
        "token",
        "times",
        "right",
        "mean loss, nats",
        "share of all loss",
        "likeliest when wrong",
    ]
    assert rows == [
        ["⏎", "3", "33%", "2.00", "50.0%", "|x"],
        ["|x", "1", "0%", "5.00", "41.7%", "⏎"],
        ["the", "2", "100%", "0.50", "8.3%", ""],
    ]


def test_the_embedding_is_written_row_for_row_with_a_label_each(tmp_path):
    torch.manual_seed(0)
    matrix = torch.randn(4, 3)
    write_embedding(matrix, ["a", "\n", "\x0b", "b\tc"], tmp_path)
    (folder,) = (tmp_path / "plugins").iterdir()

    lines = (folder / "embedding.tsv").read_text().splitlines()
    rows = [list(map(float, line.split("\t"))) for line in lines]
    torch.testing.assert_close(torch.tensor(rows), matrix, rtol=1e-3, atol=1e-3)
    assert (folder / "tokens.tsv").read_text() == "a\n⏎\n\\x0b\nb⇥c\n"


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
    store = SimpleNamespace(tokenizer_state=byte([]).to_dict())
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
