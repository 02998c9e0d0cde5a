"""Inspect how a model reads a given text: the log-probabilities of its tokens, and the attention between them."""

import codecs
from collections.abc import Sequence

import torch

from gptmini.generation import TextPiece
from gptmini.model import GPT
from gptmini.tokenizer import Tokenizer

# Logits and log-probabilities are computed for this number of tokens at a time. Those of a long text could fill the
# memory: in float64, a vocabulary of 150,000 takes 1.2 MB per token.
AT_ONCE = 64
# Attention is computed from at most this number of tokens. Its time and its memory grow with the square of this number.
MOST_ATTENDED = 1024


@torch.inference_mode()
def score_prompt(
    model: GPT,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    n_before: int,
    n_characters: int,
    n_likeliest: int,
) -> list[TextPiece]:
    """Return the tokens of a prompt of n_characters with their log-probabilities, without the first n_before ids.

    The first token has no log-probability if no id comes before the token. Log-probabilities are in nats.
    """
    tokens = torch.tensor([ids], device=model.embedding.weight.device)  # (1, T)
    hidden = model.hidden(tokens)[0, :-1]  # (T - 1, C)
    log_probabilities: list[float | None] = [None]
    likeliest: list[list[tuple[int, float]]] = [[]]
    for some, chosen in zip(hidden.split(AT_ONCE), tokens[0, 1:].split(AT_ONCE), strict=True):
        of_all = model.unembed(some.unsqueeze(0))[0].double().log_softmax(-1)  # (n, V)
        log_probabilities += of_all.gather(-1, chosen.unsqueeze(1))[:, 0].tolist()
        values, others = of_all.topk(min(n_likeliest, of_all.size(-1)))  # (n, n_likeliest) each
        for pair in zip(others.tolist(), values.tolist(), strict=True):
            likeliest.append(list(zip(*pair, strict=True)))

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(tokenizer.token_bytes(i)) for i in ids[n_before:]]
    pieces = []
    # Some tokenizers add a space before a text.
    offset = min(0, n_characters - sum(map(len, texts)))
    for i, text in enumerate(texts, start=n_before):
        probability = log_probabilities[i]
        pieces.append(TextPiece(0, text, ids[i], probability, None, max(0, offset), likeliest[i]))
        offset += len(text)
    return pieces


@torch.inference_mode()
def last_attention(model: GPT, ids: Sequence[int], n_last: int) -> list:
    """Return the attention weights (N, H, T, T) between the last tokens of a text as lists, T = n_last at most.

    If the text is longer, a row can sum to less than 1, because its token also attends to earlier tokens.
    """
    attended = ids[-min(model.config.longest_input, MOST_ATTENDED) :]
    tokens = torch.tensor([attended], device=model.embedding.weight.device)  # (1, S)
    layers = range(model.config.n_layers)
    weights = model.attention_weights(tokens, layers, n_last=n_last)[:, 0]  # (N, H, T, T)
    return weights.float().mul(1000).round().div(1000).tolist()
