"""From prompts to text that streams: whole characters, and nothing that a stop string would take back."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gptmini.checks import UserError, whole
from gptmini.generation.decoding import Decoder
from gptmini.generation.rules import Rules
from gptmini.model import GPT


class Piece(NamedTuple):
    """What one more token adds to a sample."""

    sample: int  # number of the sample: those of the first prompt, then those of the second
    text: str  # what is now certain of it; often empty, as within a character
    token: int
    log_probability: float | None  # in nats, under the model alone, before any rule; if it was asked for
    finish: str | None  # with the last piece: end_of_text, stop or length


def generate_stream(
    model: GPT,
    tokenizer,
    prompts: str | Sequence[str],
    *,
    num_samples: int = 1,
    batch_size: int = 1,
    seed: int = 0,
    stop: str | Sequence[str] | None = (),
    ignore_end_of_text: bool = False,
    log_probabilities: bool = False,
    compile: bool = False,
    int8: bool = False,
    **rules: float | None,
) -> Iterator[Piece]:
    """Continue prompts; the pieces of up to batch_size samples come in turns.

    Args:
        model, tokenizer: as load gives them; the model is in eval mode until the stream ends or is closed.
        prompts: one text or several; an empty one starts a document.
        num_samples, batch_size: samples of each prompt; most samples at a time.
        seed: fixes a sample, with its number among those of its prompt; its neighbours do not, but for rounding.
        stop: texts that end a sample where one first stands complete in what was generated; they are not part of it.
        ignore_end_of_text: whether to go on when the end of a document is drawn, instead of ending the sample there.
        log_probabilities, compile: whether pieces have them; whether the step is compiled, a minute that pays on a GPU.
        int8: whether each token's step computes with weights in 8 bits: a CPU reads a quarter of the memory.
        rules: fields of Rules: max_new_tokens, temperature and their like.

    Raises UserError, when a piece is asked for: an argument out of range, an unknown character, logits not finite.
    """
    whole("num_samples", num_samples)
    checked = Rules(**rules)

    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    ids = []
    for i, text in enumerate(texts, start=1):
        try:
            ids.append(prompt_ids(tokenizer, text))
        except UserError as error:
            raise UserError(f"prompt {i}: " * (len(texts) > 1) + str(error)) from None
    ids = [prompt for prompt in ids for _ in range(num_samples)]  # of each sample
    numbers = [*range(num_samples)] * len(texts)  # of each sample among those of its prompt

    options = {"log_probabilities": log_probabilities, "compile": compile, "int8": int8}
    decoder = Decoder(model, ids, checked, streams=numbers, seed=seed, batch_size=batch_size, **options)
    stop = [stop] if isinstance(stop, str) else stop or ()
    streams = {sample: TextStream(tokenizer, stop) for sample in range(len(ids))}
    n_drawn = [0] * len(ids)

    was_training = model.training
    model.eval()
    try:
        while drawn := decoder.draw():
            for sample, token, log_probability in drawn:
                text, finish = streams[sample], None
                n_drawn[sample] += 1
                if token == tokenizer.end_of_text and not ignore_end_of_text:
                    new, finish = text.finish(), "end_of_text"
                else:
                    new = text.push(token)
                    if not text.stopped and n_drawn[sample] == checked.max_new_tokens:
                        new, finish = new + text.finish(), "length"
                finish = "stop" if text.stopped else finish
                if finish:
                    decoder.end(sample)
                    del streams[sample]
                yield Piece(sample, new, token, log_probability, finish)
    finally:
        model.train(was_training)


def prompt_ids(tokenizer, prompt: str) -> list[int]:
    """Ids of a prompt; of an empty one what starts a document: end-of-text, or id 0 where there is none."""
    return tokenizer.encode(prompt) or [tokenizer.end_of_text or 0]


class TextStream:
    """Turns ids that arrive one at a time into text that never ends within a character or a stop string."""

    def __init__(self, tokenizer, stop: Sequence[str] = ()) -> None:
        """Take the stop strings; UserError for one that is empty."""
        if not all(stop):
            raise UserError("a stop string must not be empty")
        self.tokenizer, self.stop = tokenizer, stop
        self.stopped = False  # whether a stop string was met; nothing is to be pushed after it
        self._pending: list[int] = []
        self._decoded = 0  # characters of the pending ids' text that are certain
        self._held = ""  # certain characters with which a stop string might begin

    def push(self, token: int) -> str:
        """Text that is certain now that token has come."""
        self._pending.append(token)
        text = self.tokenizer.decode(self._pending)
        certain = text.removesuffix("�")  # an incomplete character decodes to one of these, at the end
        piece, self._decoded = certain[self._decoded :], len(certain)
        if certain == text:
            self._pending, self._decoded = [], 0
        return self._before_stop(piece)

    def finish(self) -> str:
        """Whatever is left, incomplete or not."""
        text = self._before_stop(self.tokenizer.decode(self._pending)[self._decoded :])
        rest, self._pending, self._decoded, self._held = self._held, [], 0, ""
        return text if self.stopped else text + rest

    def _before_stop(self, piece: str) -> str:
        """What may be shown of held and new text: up to a stop string, or to what might become one."""
        text = self._held + piece
        met = [(start + len(stop), start) for stop in self.stop if (start := text.find(stop)) >= 0]
        if met:
            self.stopped, self._held = True, ""
            return text[: min(met)[1]]  # of the one that is complete first
        longest = max((len(stop) for stop in self.stop), default=1) - 1
        begun = (n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in self.stop))
        n_held = next(begun, 0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]
