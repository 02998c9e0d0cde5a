"""Windows of each convention, against the field's own definitions written out, and against transformers."""

import math

import numpy as np
import pytest
import torch

from gptmini.evaluation.conventions import each_document_alone, joined, one_stream
from gptmini.evaluation.sums import sums_of_parts
from gptmini.evaluation.windows import rolling_windows
from sizes import CONTEXT, GPT2, V
from toys import wide_gpt

END = V - 1
BYTES = np.array([*range(1, V), 0])  # of each id; the end of text has none


def ids_of(n, seed=0):
    return np.random.default_rng(seed).integers(END, size=n)


def by_hand(model, given, target):
    """-log softmax of an id behind other ids, in nats."""
    with torch.no_grad():
        logits = model(torch.tensor([list(map(int, given))]))[0, -1].double()
    return float(logits.logsumexp(0) - logits[int(target)])


@pytest.mark.parametrize("n", [1, 12, 13, 14, 26, 27, 40])
def test_a_document_alone_is_scored_as_lm_evaluation_harness_defines(n):
    """Window k begins where window k - 1 ended; the last one is moved back until it is full."""
    ids = ids_of(n)
    given = [END, *ids]
    expected = []
    for position in range(n):
        window = position // CONTEXT
        is_last_of_several = window > 0 and (window + 1) * CONTEXT > n
        start = n - CONTEXT if is_last_of_several else window * CONTEXT
        expected.append((list(given[start : position + 1]), ids[position]))

    found = []
    for window in rolling_windows(ids, first=END, context_length=CONTEXT):
        assert len(window.ids) <= CONTEXT + 1
        first = len(window.ids) - window.n_scored
        for i in range(first, len(window.ids)):
            found.append((list(window.ids[:i]), window.ids[i]))
    assert found == expected


@pytest.mark.parametrize("stride", [1, 4, 12])
@pytest.mark.parametrize("n", [2, 13, 14, 40])
def test_a_stride_gives_the_loss_of_the_guide_of_hugging_face(n, stride):
    """The loop of transformers' page on perplexity, with the loss that transformers' models compute."""
    transformers = pytest.importorskip("transformers")
    from gptmini.interop import to_hugging_face

    ours = wide_gpt(GPT2).eval()
    config, state = to_hugging_face(ours)
    del config["model_type"]
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).eval()
    theirs.load_state_dict(state)
    ids = torch.from_numpy(ids_of(n))[None]

    nats = 0.0
    n_tokens = 0
    previous = 0
    for start in range(0, n, stride):
        end = min(start + CONTEXT, n)
        labels = ids[:, start:end].clone()
        labels[:, : -(end - previous)] = -100
        n_scored = int((labels[:, 1:] != -100).sum())  # the label of the first id is not used
        if n_scored:
            with torch.no_grad():
                loss = theirs(ids[:, start:end], labels=labels).loss
            nats += float(loss) * n_scored
            n_tokens += n_scored
        previous = end
        if end == n:
            break

    plan = one_stream(
        ids[0].numpy(), n, None, stride=stride, context_length=CONTEXT, byte_lengths=BYTES
    )
    sums = sums_of_parts(ours, plan.windows, batch_size=3)
    assert sums.n_tokens.sum() == n_tokens == n - 1
    assert sums.nats.sum() == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_filling_up_a_batch_changes_no_loss(batch_size):
    model = wide_gpt(GPT2).eval()
    documents = [ids_of(n, seed=n) for n in (5, 1, 20, 13, 3)]
    expected = []
    for ids in documents:
        for window in rolling_windows(ids, first=END, context_length=CONTEXT):
            for i in range(len(window.ids) - window.n_scored, len(window.ids)):
                expected.append(by_hand(model, window.ids[:i], window.ids[i]))

    plan = each_document_alone(
        documents, end_of_text=END, context_length=CONTEXT, byte_lengths=BYTES
    )
    told = []
    sums = sums_of_parts(model, plan.windows, batch_size=batch_size, on_batch=told.append)
    assert told[-1] == plan.n_tokens == 42
    assert sums.n_tokens.tolist() == [5, 1, 20, 13, 3]
    assert sums.n_bytes.tolist() == [int(BYTES[ids].sum()) for ids in documents]
    starts = np.cumsum([0, 5, 1, 20, 13])
    for part, start, n in zip(sums.nats, starts, sums.n_tokens, strict=True):
        assert part == pytest.approx(sum(expected[start : start + n]), rel=1e-5)
    assert sums.loss == pytest.approx(sum(expected) / 42, rel=1e-5)
    bits = sum(expected) / math.log(2) / sums.n_bytes.sum()
    assert sums.bits_per_byte == pytest.approx(bits, rel=1e-5)


def parts_of(plan):
    """The part of each scored token of a plan."""
    return np.concatenate([scored.parts for scored in plan.windows]).tolist()


def test_documents_of_a_stream_are_told_apart_by_their_ends():
    documents = [ids_of(n, seed=n) for n in (4, 20, 1)]
    ids = np.concatenate([np.append(document, END) for document in documents])
    ends = np.cumsum([5, 21, 2])
    options = {"stride": None, "context_length": CONTEXT, "byte_lengths": BYTES}
    plan = one_stream(ids, 28, ends, **options)
    assert (plan.unit, plan.n_tokens) == ("documents", 27)
    lengths = [len(scored.window.ids) for scored in plan.windows]
    assert lengths == [14, 14, 2]
    # The first id is not predicted; each document keeps its end.
    plan = one_stream(ids, 28, ends, **options)
    assert parts_of(plan) == [0] * 4 + [1] * 21 + [2] * 2
    strided = one_stream(ids, 28, ends, **options | {"stride": 3})
    assert parts_of(strided) == [0] * 4 + [1] * 21 + [2] * 2


@pytest.mark.parametrize("ends", [None, np.array([2000, 2100])])
def test_one_document_is_divided_into_blocks_of_bytes(ends):
    ids = ids_of(2000)
    plan = one_stream(ids, 1500, ends, stride=None, context_length=13, byte_lengths=BYTES)
    assert plan.unit == "blocks of 512 bytes"
    begins = np.concatenate([[0], np.cumsum(BYTES[ids[1:1500]])[:-1]])
    assert parts_of(plan) == (begins // 512).tolist()


def test_the_parts_of_several_texts_follow_each_other():
    def plan():
        return one_stream(
            ids_of(300), 300, None, stride=None, context_length=13, byte_lengths=BYTES
        )

    alone = parts_of(plan())
    both = joined([plan(), plan()])
    assert both.n_tokens == 598
    assert parts_of(both) == alone + [part + alone[-1] + 1 for part in alone]


def test_texts_of_many_parts_are_added_up_part_by_part():
    """More parts than the sums have room for at first, in an order in which some have no token."""
    model = wide_gpt(GPT2).eval()
    documents = [ids_of(n % 3, seed=n) for n in range(200)]
    plan = each_document_alone(
        documents, end_of_text=END, context_length=CONTEXT, byte_lengths=BYTES
    )
    sums = sums_of_parts(model, plan.windows, batch_size=5)
    lengths = [len(ids) for ids in documents if len(ids)]
    assert sums.n_tokens.tolist() == lengths
    assert sums.n_bytes.tolist() == [int(BYTES[ids].sum()) for ids in documents if len(ids)]
