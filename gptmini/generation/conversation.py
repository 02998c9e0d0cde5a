"""A conversation with a model. It consists of messages and of the model's answers to these messages."""

from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

from gptmini.data import checked_messages
from gptmini.generation.sample import Request, TextPiece
from gptmini.generation.sampling import checked_request
from gptmini.generation.session import Session
from gptmini.model import GPT, in_eval_mode
from gptmini.settings import CHAT_TOKENS, SAMPLE_SEED, SAMPLE_TEMPERATURE
from gptmini.system.errors import UserError
from gptmini.tokenizer import Tokenizer, chat_encoder_of

# A message has the strings 'role' and 'content', and may have other fields that a template uses.
Message = dict[str, Any]


class Conversation:
    """The messages of one chat.

    The model keeps its keys and values between turns. Therefore, each turn encodes only the tokens that are new.

    Attributes:
        request: the rules and the seed of an answer. A caller may replace the request between answers.
        messages: the messages so far. A caller may change the messages between answers.
        n_dropped: number of old messages that the model did not see for the last answer, because the conversation is
            longer than the context.
        finish: the reason why the last answer ended: end_of_text, stop or length. None if the answer was interrupted.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        request: Request,
        messages: Sequence[Message] = (),
    ) -> None:
        """Start a conversation. The model is in eval mode. The prompt of the request is not used.

        Raises UserError if the tokenizer has no chat template.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.request = replace(request, leading=chat_encoder_of(tokenizer).leading)
        self.messages: list[Message] = list(messages)
        self.n_dropped = 0
        self.finish: str | None = None
        self._session = Session(model, tokenizer, reuse=True)

    def answer(self) -> Generator[TextPiece, None, None]:
        """Yield the answer of the model to the last message in pieces, and add the answer to the messages.

        If the caller stops early, the part of the answer that was yielded is added. Raises UserError if the chat
        template rejects the messages, or if the last message does not fit into the context.
        """
        context = self.model.config.longest_input
        rules = self.request.rules
        prompt, self.n_dropped = prompt_within(
            context, self.tokenizer, self.messages, rules.max_new_tokens
        )
        # The model must see the system message until the answer ends. It does not read the last token of the answer.
        room = context - len(prompt) + 1
        rules = replace(rules, max_new_tokens=min(rules.max_new_tokens or room, room))

        number = self._session.add(replace(self.request, prompt=prompt, rules=rules))
        self.finish = None
        answer = ""

        try:
            for piece in self._session.pieces():
                answer += piece.text
                self.finish = piece.finish
                yield piece
        finally:
            self._session.end(number)
            self.messages.append({"role": "assistant", "content": answer})


@overload
def chat(
    model: GPT,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    stream: Literal[False] = ...,
    **options: Any,
) -> str: ...
@overload
def chat(
    model: GPT,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    stream: Literal[True],
    **options: Any,
) -> Generator[str, None, None]: ...
def chat(
    model: GPT,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    stream: bool = False,
    seed: int = SAMPLE_SEED,
    max_new_tokens: int | None = CHAT_TOKENS,
    temperature: float = SAMPLE_TEMPERATURE,
    stop: str | Sequence[str] | None = None,
    ignore_end_of_text: bool = False,
    **rules: Any,
) -> str | Generator[str, None, None]:
    """Return the model's answer to the last message of a chat, or yield it in pieces.

    Args:
        model, tokenizer: from load. The model is in eval mode until the answer ends.
        messages: a list of role and content. If the chat does not fit into the context, the oldest messages are left
            out. A system message at the start always stays.
        stream: True to yield pieces of the answer.
        seed, max_new_tokens, temperature, stop, ignore_end_of_text, rules: see generate_stream.

    Raises UserError if the tokenizer has no chat template, if a message has another form, if the template rejects the
    messages, or if an option is unknown or has a wrong value.
    """
    checked = checked_messages(messages)
    request = checked_request(
        chat,
        seed=seed,
        stop=stop,
        ignore_end_of_text=ignore_end_of_text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        **rules,
    )
    conversation = Conversation(model, tokenizer, request, checked)

    def texts() -> Generator[str, None, None]:
        with in_eval_mode(model):
            yield from (piece.text for piece in conversation.answer())

    return texts() if stream else "".join(texts())


def prompt_within(
    context: int, tokenizer: Tokenizer, messages: Sequence[Message], max_new_tokens: int | None
) -> tuple[list[int], int]:
    """Return the ids of a chat up to its next answer, and the number of old messages that were left out.

    Old messages are left out if the chat does not fit into the context together with the answer. The space for the
    answer is at most half of the context. If the first message is a system message, it is never left out.

    Raises UserError if the chat template rejects the messages, or if the last message alone does not fit.
    """
    room = context - min(max_new_tokens or context, context // 2)
    n_first = 1 if messages and messages[0]["role"] == "system" else 0
    first, rest = messages[:n_first], messages[n_first:]

    def ids_from(start: int) -> list[int]:
        return chat_encoder_of(tokenizer).prompt([*first, *rest[start:]])

    # Templates expect a question first. A chat that starts at a later question is shorter, so bisection finds the first
    # start that fits.
    questions = [i for i in range(1, len(rest)) if rest[i]["role"] == "user"]
    starts = [0, *questions]
    fitting = bisect_left(starts, -room, key=lambda start: -len(ids_from(start)))
    start = starts[min(fitting, len(starts) - 1)]
    ids = ids_from(start)
    if len(ids) > context:
        raise UserError(
            f"the last message and the template must have at most {context} tokens together, got {len(ids)}; "
            "shorten the message"
        )
    return ids, start
