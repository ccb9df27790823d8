"""Asking for what no flag has said: on a terminal only, each question with its reason and a default."""

import shlex
import sys
from collections.abc import Callable
from typing import TypeVar

import typer

from scaler.cli.output import chatter
from scaler.errors import UserError

Value = TypeVar("Value")


class Questions:
    """Collects values: from flags, else from a person, else from defaults.

    Prompts go to stderr, so that stdout stays data.

    Args:
        ask: whether there is a person to ask.
    """

    def __init__(self, *, ask: bool) -> None:
        self._ask = ask
        self._missing: list[str] = []
        self._answers: list[str] = []

    def value(
        self,
        flag: str,
        given: Value | None,
        *,
        why: str,
        read: Callable[[str], Value],
        default: str | None = None,
    ) -> Value | None:
        """Return one value; None if there is none, which `check` then reports.

        Args:
            flag: how the command line calls it.
            given: what it said.
            why: the question's sentence.
            read: makes the value of an answer; raises ValueError with what is wrong with it.
            default: the answer of somebody who gives none; None where there has to be one.

        Raises:
            typer.Abort: the terminal was closed.
            UserError: nobody can be asked, and the default doesn't fit what was given.
        """
        if given is not None:
            return given
        if self._ask:
            return self._asked(flag, why, read, default)
        if default is None:
            self._missing.append(flag)
            return None
        try:
            return read(default)
        except ValueError as error:
            raise UserError(f"{flag} is {default} by default: {error}", hint=f"give {flag}") from error

    @property
    def answers(self) -> str:
        """What a person has answered, as it would stand on a command line; empty if nobody was asked."""
        return shlex.join(self._answers)

    def check(self) -> None:
        """Say what is missing.

        Raises:
            UserError: something is, and nobody could be asked.
        """
        if self._missing:
            hint = "standard input is no terminal, so nobody is asked; give each of them"
            raise UserError(f"missing: {', '.join(self._missing)}", hint=hint)

    def _asked(self, flag: str, why: str, read: Callable[[str], Value], default: str | None) -> Value:
        out = chatter()
        out.print(f"\n{why}", soft_wrap=True)
        while True:
            shown = f" [{default}]" if default else ""
            out.print(f"{flag.lstrip('-')}{shown}: ", end="", soft_wrap=True)
            line = sys.stdin.readline()
            if not line:
                raise typer.Abort
            answer = line.strip() or default or ""
            try:
                value = read(answer)
            except ValueError as error:
                out.print(str(error), style="red", soft_wrap=True)
                continue
            self._answers += [flag, answer] if flag.startswith("-") else [answer]
            return value
