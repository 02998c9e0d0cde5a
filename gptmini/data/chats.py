"""Chats of a text as ids, and what a user should know of them: refused chats, roles, chats without an answer."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gptmini.data.corpus import Corpus, Document
from gptmini.data.readers import MOST_LISTED
from gptmini.tokenizer import LibraryTokenizer, Tokenizer
from gptmini.tokenizer.library import NO_TEMPLATE
from gptmini.user_error import UserError

MOST_ROLES = 20  # roles of chats that a message names


@dataclass
class ChatReport:
    """What a user should know of chats beside their ids: of a task, kept with its ids, or of all tasks."""

    # Chats that were left out, because the template refuses them, and what is wrong with each of the first of these.
    n_refused: int = 0
    refused: list[str] = field(default_factory=list)
    n_without: int = 0  # chats of whose tokens the loss counts none
    roles: list[str] = field(default_factory=list)  # some of the roles that occur, sorted

    def leave_out(self, problem: str) -> None:
        """Count a chat that the template refuses."""
        self.n_refused += 1
        if len(self.refused) < MOST_LISTED:
            self.refused.append(problem)

    def add_roles(self, roles: Iterable[str]) -> None:
        """Note roles that occur."""
        self.roles = sorted({*self.roles, *roles})[:MOST_ROLES]

    def add(self, others: "ChatReport") -> None:
        """Add the report on the chats behind these."""
        self.n_refused += others.n_refused
        self.refused = [*self.refused, *others.refused][:MOST_LISTED]
        self.n_without += others.n_without
        self.add_roles(others.roles)

    def skipped(self) -> str:
        """A line for each of the first chats that were left out, and how many more there were."""
        lines = [*self.refused]
        more = self.n_refused - len(lines)
        if more:
            lines.append(f"and {more:,} more chats")
        return "".join(f"{line}\n" for line in lines)

    def notes(self, loss_on: str) -> list[str]:
        """Lines about these chats that a user should read."""
        notes = []
        if self.n_refused:
            noun = "chat was" if self.n_refused == 1 else "chats were"
            notes.append(
                f"{self.n_refused:,} {noun} left out that the template cannot encode; the first: {self.refused[0]}"
            )
        if self.n_without and loss_on == "answers":
            noun = "chat has" if self.n_without == 1 else "chats have"
            notes.append(
                f"{self.n_without:,} {noun} no answer to train on; data.loss_on=answers trains on the role assistant, "
                f"and all chats have the roles {self.named_roles()}"
            )
        return notes

    def named_roles(self) -> str:
        """The roles that occur, as a message names them."""
        return ", ".join(role if role.isidentifier() else repr(role) for role in self.roles)


def join_chats(parts: Iterable[Path]) -> ChatReport:
    """The report on the chats of all tasks, whose files are parts."""
    chats = ChatReport()
    for path in parts:
        with np.load(path) as part:
            chats.add(ChatReport(**json.loads(part["chats"].tobytes())))
    return chats


def nothing_in(split: str, chats: ChatReport | None, loss_on: str) -> str:
    """What is wrong with a split without anything to train on or to validate on."""
    problem = f"the {split} split must hold text, got none; give more text"
    if chats is None:
        return problem
    if loss_on == "answers" and "assistant" in chats.roles:
        problem = f"the {split} split must hold answers for data.loss_on=answers, got none; give more chats"
    elif loss_on == "answers" and chats.roles:
        problem = (
            f"data.loss_on=answers trains on the role assistant, and the {split} split has no answer of that role; the "
            f"chats have the roles {chats.named_roles()}; rename one to assistant, or use data.loss_on=all"
        )
    if chats.n_refused:
        problem += (
            f"; of all chats, {chats.n_refused:,} were left out, the first: {chats.refused[0]}"
        )
    return problem


def encode_chats(
    documents: Iterable[Document], tokenizer: Tokenizer, corpus: Corpus, report: ChatReport
) -> Iterator[np.ndarray | None]:
    """Ids of each chat, whose messages are given in JSON, int64; an id that the loss does not count is stored as ~id.

    A chat that the template refuses is None, and counted in `report`, where the corpus leaves such records out.

    Raises UserError: the tokenizer has no chat template, or it refuses a chat.
    """
    if not isinstance(tokenizer, LibraryTokenizer):
        raise UserError(NO_TEMPLATE)
    from gptmini.tokenizer.chat import RefusedChatError  # loads Jinja, which only chats need

    chats = tokenizer.chats
    for document in documents:
        messages = json.loads(document.text)
        report.add_roles(message["role"] for message in messages)
        try:
            ids, is_counted = chats.encode(messages, loss_on=corpus.loss_on)
        except UserError as error:
            problem = f"{document.where or 'a chat'} cannot be encoded: {error}"
            if not isinstance(error, RefusedChatError):
                raise UserError(problem) from None
            if corpus.on_error == "fail":
                remedy = "data.on_error is fail; set it to skip to leave such chats out"
                raise UserError(problem, for_training=remedy) from None
            report.leave_out(problem)
            yield None
            continue

        report.n_without += not is_counted.any()
        marked = ids.astype(np.int64)
        yield np.where(is_counted, marked, ~marked)
