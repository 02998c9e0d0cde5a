"""A conversation with a model: messages, and the answers that the model gives to them."""

from collections.abc import Generator, Sequence
from typing import Any

from gptmini.generation import Decoder, Rules, TextStream
from gptmini.model import GPT
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

Message = dict[str, Any]  # strings role and content, and other fields that a template may use


class Conversation:
    """The messages of one chat. The model keeps its keys and values between turns, so a turn encodes only what is new.

    Attributes:
        messages: the messages so far, which a caller may change between answers.
        n_dropped: messages that the last answer left out, because the conversation has outgrown the context.
        finish: why the last answer ended: end_of_text, stop or length; None if it was interrupted.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        rules: Rules,
        *,
        messages: Sequence[Message] = (),
        seed: int,
        stop: Sequence[str] = (),
        ignore_end_of_text: bool = False,
    ) -> None:
        """Start a conversation.

        Args:
            model: a GPT in eval mode.
            tokenizer: of the model, with a chat template.
            rules: how to draw tokens; max_new_tokens is the maximum length of an answer.
            messages: the messages so far.
            seed: seed of the random numbers of each answer.
            stop, ignore_end_of_text: see generate_stream.

        Raises UserError if the tokenizer has no chat template.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.rules = rules
        self.messages: list[Message] = list(messages)
        self.seed = seed
        self.stop = stop
        self.ignore_end_of_text = ignore_end_of_text
        self.n_dropped = 0
        self.finish: str | None = None
        self._encoder = tokenizer.chat_encoder
        self._decoder = Decoder(model, reuse=True)

    def answer(self) -> Generator[str, None, None]:
        """Yield the model's answer to the last message in pieces, and add it to the messages.

        If the caller stops early, the answer so far is added. Raises UserError if the template refuses the messages, or
        if the last message does not fit into the context.
        """
        prompt, self.n_dropped = prompt_within(
            self.model, self.tokenizer, self.messages, self.rules.max_new_tokens
        )
        stream = TextStream(
            self.tokenizer,
            self.stop,
            max_tokens=self.rules.max_new_tokens,
            ignore_end_of_text=self.ignore_end_of_text,
            leading=self._encoder.leading,
        )
        number = self._decoder.add(prompt, self.rules, seed=self.seed)
        self.finish = None
        answer = ""
        try:
            while self.finish is None:
                (drawn,) = self._decoder.draw()
                text, self.finish = stream.add(drawn.token)
                answer += text
                yield text
        finally:
            self._decoder.end(number)
            self.messages.append({"role": "assistant", "content": answer})


def prompt_within(
    model: GPT, tokenizer: Tokenizer, messages: Sequence[Message], max_new_tokens: int | None
) -> tuple[list[int], int]:
    """Return the ids of a chat up to its next answer, and how many old messages were left out to make it fit.

    The ids leave room for the answer, but for at most half of the context. A system message at the start always stays.

    Raises UserError if the template refuses the messages, or if the last message alone does not fit.
    """
    context = model.config.longest_input
    room = context - min(max_new_tokens or context, context // 2)
    n_first = 1 if messages and messages[0]["role"] == "system" else 0
    first = list(messages[:n_first])
    for n_dropped in range(len(messages)):
        kept = messages[n_first + n_dropped :]
        # The oldest message that stays must not be an answer, because templates start with a question.
        if n_dropped and kept and kept[0]["role"] == "assistant":
            continue
        ids = tokenizer.chat_encoder.prompt([*first, *kept])
        if len(ids) <= room:
            return ids, n_dropped
        if len(kept) <= 1:
            break
    if messages and len(ids) <= context:
        return ids, n_dropped
    raise UserError(
        f"the last message must have fewer than {context} tokens together with the template, got {len(ids)}; shorten it"
    )
