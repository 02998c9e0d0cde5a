"""Both conventions score the tokens of their published definitions."""

import numpy as np
import pytest
import torch

from gptmini.data.prepared.batches import validation_windows
from gptmini.data.prepared.store import Excerpt
from gptmini.evaluation.score import evaluate, score
from gptmini.evaluation.windows import passage_of_documents, passage_of_excerpt, rolling_windows
from sizes import CONTEXT, GPT2, V
from toys import wide_gpt

END = V - 1
BYTES = np.array([*range(1, V), 0])  # bytes of each id; end-of-text has no bytes


def ids_of(n, seed=0):
    return np.random.default_rng(seed).integers(END, size=n)


def stream_of(ids, ends=None, n_tokens=None):
    excerpt = Excerpt(ids, n_tokens or len(ids), tokens_per_byte=1.0, document_ends=ends)
    return passage_of_excerpt(excerpt, context_length=CONTEXT, batch_size=3)


def alone(documents, batch_size=5):
    return passage_of_documents(
        documents,
        first=END,
        first_text="<|endoftext|>",
        context_length=CONTEXT,
        batch_size=batch_size,
    )


def scored(*passages):
    """Return the scores of passages under a small model."""
    return score(wide_gpt(GPT2).eval(), passages, byte_lengths=BYTES)


def nats_of(model, ids):
    """Return -log softmax of each id after the first, in nats, computed in one window."""
    with torch.no_grad():
        logits = model(torch.tensor(ids[None, :-1]))[0].double()
    picked = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]]
    return -picked.numpy()


@pytest.mark.parametrize("n", [1, 12, 13, 14, 26, 27, 40])
def test_a_document_alone_is_scored_as_lm_evaluation_harness_defines(n):
    """Window k starts where window k - 1 ended; the last window is extended to the left until it is full."""
    ids = ids_of(n)
    given = [END, *ids]
    expected = []
    for position in range(n):
        window = position // CONTEXT
        is_last_of_several = window > 0 and (window + 1) * CONTEXT > n
        start = n - CONTEXT if is_last_of_several else window * CONTEXT
        expected.append((list(given[start : position + 1]), ids[position]))

    found = []
    for tokens, targets in rolling_windows(ids, first=END, context_length=CONTEXT):
        assert len(tokens) == len(targets) <= CONTEXT
        for i in torch.nonzero(targets != -100).flatten():
            found.append((tokens[: i + 1].tolist(), targets[i]))
    assert found == expected


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_filling_up_a_batch_changes_no_loss(batch_size):
    model = wide_gpt(GPT2).eval()
    documents = [ids_of(n, seed=n) for n in (5, 1, 20, 13, 3)]
    expected = []
    for ids in documents:
        nats = 0.0
        for tokens, targets in rolling_windows(ids, first=END, context_length=CONTEXT):
            window = np.append(tokens, targets[-1])
            nats += nats_of(model, window)[(targets != -100).numpy()].sum()
        expected.append(nats)

    passage = alone(documents, batch_size)
    told = []
    tally, sums = score(model, [passage], byte_lengths=BYTES, on_batch=told.append)
    assert told[-1] == passage.n_tokens == tally.n_tokens == 42
    assert sums.n_tokens.tolist() == [5, 1, 20, 13, 3]
    assert sums.n_bytes.tolist() == [int(BYTES[ids].sum()) for ids in documents]
    assert sums.nats == pytest.approx(expected, rel=1e-5)
    assert float(tally.nats) == pytest.approx(sum(expected), rel=1e-5)


@pytest.mark.parametrize("n_tokens", [None, 17])
def test_a_stream_is_scored_in_the_batches_of_a_validation(n_tokens):
    """The results are bitwise equal, also for two sources that are added to the same sum."""
    model = wide_gpt(GPT2).eval()
    ids = ids_of(100)
    passages = [stream_of(ids, n_tokens=n_tokens), stream_of(ids[7:])]
    tally, _ = score(model, passages, byte_lengths=BYTES)

    options = {"context_length": CONTEXT, "batch_size": 3}
    batches = [
        *validation_windows(ids, max_tokens=n_tokens, **options),
        *validation_windows(ids[7:], **options),
    ]
    of_validation = evaluate(model, batches, tokens_per_byte=1.5)
    assert tally.evaluation(tokens_per_byte=1.5) == of_validation


def test_documents_of_a_stream_are_told_apart_by_their_ends():
    documents = [ids_of(n, seed=n) for n in (4, 20, 1)]
    ids = np.concatenate([np.append(document, END) for document in documents])
    # The same dtype as in a prepared folder.
    ends = np.cumsum([5, 21, 2]).astype(np.uint64)
    passage = stream_of(ids, ends)
    assert passage.n_tokens == 27

    # The first id is not predicted; each document includes its end-of-text.
    _, sums = scored(passage)
    assert sums.n_tokens.tolist() == [4, 21, 2]
    assert sums.n_bytes[1:].tolist() == [int(BYTES[ids].sum()) for ids in documents[1:]]


@pytest.mark.parametrize("ends", [None, np.array([2000, 2100])])
def test_one_document_is_divided_into_blocks_of_bytes(ends):
    ids = ids_of(2000)
    passage = stream_of(ids, ends, n_tokens=1499)
    assert passage.ends is None
    _, sums = scored(passage)
    begins = np.concatenate([[0], np.cumsum(BYTES[ids[1:1500]])[:-1]])
    assert sums.n_tokens.tolist() == np.bincount(begins // 512).tolist()
