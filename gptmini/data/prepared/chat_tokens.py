"""Encode chats, and report their roles, the rejected chats, and the chats without an answer."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from gptmini.data.corpus import Corpus
from gptmini.data.prepared.ids import without_marks
from gptmini.data.prepared.store import TokenStore
from gptmini.data.reading.chat_formats import parse_chat
from gptmini.data.reading.skipped import SkippedRecords
from gptmini.system.errors import UserError
from gptmini.tokenizer import Document, RefusedChatError, Tokenizer, chat_encoder_of

MOST_ROLES = 20  # number of roles that a message shows


@dataclass
class ChatReport:
    """A report on the chats of one task or of all tasks. The report of a task is stored with the ids of the task."""

    # Chats that the template rejects.
    refused: SkippedRecords = field(default_factory=SkippedRecords)
    n_uncounted: int = 0  # number of chats without any token that the loss counts
    roles: list[str] = field(default_factory=list)  # the first MOST_ROLES roles, sorted
    ignores_tools: bool = False  # whether chats have tools, which the template does not use

    def add_roles(self, roles: Iterable[str]) -> None:
        """Add roles that occur in the chats."""
        self.roles = sorted({*self.roles, *roles})[:MOST_ROLES]

    def notes(self, loss_on: str) -> list[str]:
        """Return the notes on these chats for the user."""
        notes = self.refused.notes("chat", "rejected by the template and skipped")
        if self.n_uncounted and loss_on == "answers":
            noun = "chat has" if self.n_uncounted == 1 else "chats have"
            notes.append(
                f"{self.n_uncounted:,} {noun} no answer to train on; with data.loss_on=answers, answers must have the "
                f"role 'assistant', got the roles {self.named_roles()}"
            )
        if self.ignores_tools:
            notes.append("the chat template does not use the field 'tools' of the chats")
        return notes

    def named_roles(self) -> str:
        """Return the roles, separated by commas."""
        return ", ".join(role if role.isidentifier() else repr(role) for role in self.roles)


def join_reports(task_files: Iterable[Path]) -> ChatReport:
    """Return the report on the chats of all tasks."""
    joined = ChatReport()
    for path in task_files:
        with np.load(path) as task:
            report = json.loads(task["chats"].tobytes())
        joined.refused.add(**report["refused"])
        joined.n_uncounted += report["n_uncounted"]
        joined.ignores_tools |= report["ignores_tools"]
        joined.add_roles(report["roles"])
    return joined


def nothing_in(split: str, report: ChatReport | None = None, loss_on: str = "all") -> str:
    """Return the error message for a split that contains nothing to train or validate on."""
    problem = f"the {split} split must contain text, got no text; give more text"
    if report is None:
        return problem
    if loss_on == "answers":
        problem = (
            f"data.loss_on=answers requires answers of the role 'assistant' in the {split} split, got no answers; the "
            f"chats have the roles {report.named_roles()}; give more chats, or rename a role"
        )
    return "; ".join([problem, *report.refused.notes("chat", "skipped")])


def encode_chats(
    documents: Iterable[Document], tokenizer: Tokenizer, corpus: Corpus, report: ChatReport
) -> Iterator[np.ndarray | None]:
    """Yield the ids of each chat as an int64 array. The loss does not count an id that is yielded as ~id.

    If on_error is "skip", None is yielded for a chat that the template rejects, and `report` counts the chat.

    Raises UserError if the tokenizer has no chat template, or if the template rejects a chat.
    """
    chats = chat_encoder_of(tokenizer)
    for document in documents:
        messages, tools = parse_chat(document.text)
        report.add_roles(message["role"] for message in messages)
        encoder = chats.with_names({"tools": tools})
        try:
            ids, is_counted = encoder.encode(messages, loss_on=corpus.loss_on)
        except UserError as error:
            place = f"{document.where}: " if document.where else ""
            problem = f"{place}cannot encode the chat: {error}"
            if not isinstance(error, RefusedChatError):
                raise UserError(problem) from None
            if corpus.on_error == "fail":
                remedy = "set data.on_error=skip to skip rejected chats"
                raise UserError(problem, for_training=remedy) from None
            report.refused.add(1, [problem])
            yield None
            continue

        report.n_uncounted += not is_counted.any()
        report.ignores_tools |= tools is not None and not chats.uses_tools
        marked = ids.astype(np.int64)
        yield np.where(is_counted, marked, ~marked)


def first_question(store: TokenStore) -> list[int]:
    """Return the ids of a held-out chat up to its first answer that the loss counts. Return [] if none is found."""
    opening = chat_encoder_of(store.tokenizer).generation_prompt().encode()
    ids = store.tokens("val")
    ends = store.document_ends("val").tolist()
    for start, end in pairwise([0, *ends]):
        chat = ids[start:end]
        if chat.dtype.kind == "i":  # the ids outside of answers are marked
            n = next(iter(np.flatnonzero(chat >= 0).tolist()), 0)
        else:
            tokens = [store.tokenizer.token_bytes(i) for i in chat.tolist()]
            question, found, _ = b"".join(tokens).partition(opening) if opening else (b"", b"", b"")
            lengths = np.cumsum([len(token) for token in tokens])
            n = 1 + int(np.searchsorted(lengths, len(question + found))) if found else 0
        if n:
            return without_marks(chat[:n]).tolist()
    return []
