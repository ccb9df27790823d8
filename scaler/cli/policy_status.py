"""`emberpool policy status`: which policy files a controller has in force, and what came of the last attempt to reload them."""

import time
from collections.abc import Sequence

import typer
from pydantic import Field
from rich.text import Text

from scaler.cli.answers import Answer, FleetCondition
from scaler.cli.failures import FAILED, OK
from scaler.cli.human import NOTHING, age, listed, plural
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import examples
from scaler.cli.output import emit, pairs
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.cli.told import page
from scaler.errors import PolicyFault


class _Fault(Answer):
    """One fault of a file."""

    file: str
    line: int
    column: int
    path: str = ""
    message: str = ""
    hint: str = ""


class _Attempt(Answer):
    """The last attempt to reload."""

    at: float
    cause: str = ""
    outcome: str
    added: Sequence[str] = ()
    changed: Sequence[str] = ()
    removed: Sequence[str] = ()
    faults: Sequence[_Fault] = ()
    more_faults: int = 0
    problem: str = ""

    @property
    def failed(self) -> bool:
        """Whether what is in force is not what is in the files."""
        return self.outcome not in {"Loaded", "Unchanged"}


class _Status(Answer):
    """What a controller says of its policy files."""

    hash: str
    since: float | None = None
    fleets: int = 0
    policies: int = 0
    files: Sequence[str] = ()
    not_changed_live: Sequence[str] = ()
    last_attempt: _Attempt | None = Field(default=None)
    conditions: Sequence[FleetCondition] = ()


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "status",
        epilog=examples(
            "emberpool policy status",
            "emberpool policy status -n serving --context prod",
            "emberpool policy status -o json | jq '.lastAttempt.faults'",
        ),
    )(status)


@whom
def status(output: RenderingOption = Rendering.TEXT, *, target: Target) -> int:
    """Show which policy files are in force, since when, and what came of the last attempt to reload them.

    A controller looks at its files each second and takes over what has changed; SIGHUP and `POST /-/reload` (with
    the token in its EMBERPOOL_AGENT_TOKEN) have them read at once. Files with a fault change nothing: the last good ones stay in force.

    Exit code 0: what is in the files is in force; 1: the last attempt to reload them failed; 2: nobody could be asked.
    """
    body, found = page(target, "/v1/policies/status", _Status.model_validate)
    if output is not Rendering.TEXT:
        emit(as_data(dict(body), output))
    else:
        _show(found, time.time())
    return FAILED if found.last_attempt is not None and found.last_attempt.failed else OK


def _show(found: _Status, now: float) -> None:
    attempt = found.last_attempt
    since = NOTHING if found.since is None else f"{_when(found.since)} ({age(now - found.since)})"
    emit(
        pairs(
            [
                ("Policy hash", found.hash),
                ("In force since", since),
                ("Holds", f"{plural(found.fleets, 'fleet')}, {plural(found.policies, 'policy')}"),
                ("Files", _files(found.files)),
                ("Last attempt", "none since the start" if attempt is None else _attempt(attempt, now)),
            ]
        )
    )
    if attempt is not None:
        changes = [("Added", attempt.added), ("Changed", attempt.changed), ("Removed", attempt.removed)]
        if told := [(name, listed(names)) for name, names in changes if names]:
            emit(pairs(told))
        more = [f"and {attempt.more_faults} more"] if attempt.more_faults else []
        _list("Faults", [*map(_fault, attempt.faults), *more])
    _list("Not changed while the process runs", found.not_changed_live)
    _list("Conditions", [f"fleet {each.fleet}: {each.text}" for each in found.conditions])


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _files(files: Sequence[str]) -> str:
    if not files:
        return "none: the policies were made up by `emberpool local`"
    return files[0] if len(files) == 1 else f"{len(files)}: {', '.join(files)}"


def _attempt(attempt: _Attempt, now: float) -> str:
    text = f"{attempt.outcome}, {age(now - attempt.at)} ago, because of a {attempt.cause or 'change'}"
    return f"{text}: {attempt.problem}" if attempt.problem else text


def _fault(fault: _Fault) -> str:
    return str(PolicyFault(**fault.model_dump())).replace("\n\nhint: ", "\n    hint: ")


def _list(title: str, lines: Sequence[str]) -> None:
    if lines:
        emit(Text("\n".join([f"{title}:", *(f"  - {line}" for line in lines)])))
