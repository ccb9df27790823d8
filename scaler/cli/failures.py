"""How a command fails: one place that turns errors into `error: …`, a blank line, `hint: …`, and an exit code.

0 is success; 1 says that the command was right and what it asked for isn't so (a failed check, no such object, nobody
answers); 2 says that the command itself or a file it names must be mended. Where 1 is what a command was asked to find
out, as whether a reload has failed, nobody who answers is 2: a pipeline must be able to tell the two apart.
"""

from contextlib import suppress
from typing import Final

from scaler.errors import PolicyError, ScalerError, UserError
from scaler.policy.visible import escaped

OK: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2


class Failed(ScalerError):
    """The command was right, but what it asked for isn't so: exit code 1.

    Attributes:
        hint: what to do about it; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Unasked(UserError):
    """What a command is to find out can't be asked: exit code 2, because 1 is one of its answers."""


def report(error: ScalerError) -> int:
    """Print an error for people to stderr and return its exit code."""
    match error:
        case PolicyError():
            for fault in error.faults:
                complain(str(fault).partition("\n\nhint: ")[0], fault.hint)
        case UserError() | Failed():
            complain(str(error), error.hint)
        case _:
            complain(str(error) or type(error).__name__)
    return UNUSABLE if isinstance(error, UserError) else FAILED


def complain(message: str, hint: str = "") -> None:
    """Print one error to stderr; where nobody can be told, the exit code alone has to say it."""
    from scaler.cli.output import chatter  # noqa: PLC0415 - rich is slow to import, and most commands succeed

    out = chatter()
    with suppress(OSError):
        out.print("error: ", style="red", end="")
        out.print(escaped(message, keep="\n"), soft_wrap=True)  # a terminal obeys control characters
        if hint:
            out.print()
            out.print("hint: ", style="cyan", end="")
            out.print(escaped(hint, keep="\n"), soft_wrap=True)
        out.print()
