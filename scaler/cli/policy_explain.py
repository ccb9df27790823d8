"""`emberpool policy explain`: what the law would answer to a load, step by step."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import typer

from scaler.cli.explain_text import as_text, as_tree, changing
from scaler.cli.failures import OK
from scaler.cli.options import Paths, examples
from scaler.cli.output import chatter, emit
from scaler.cli.policy_files import read_set
from scaler.cli.renderings import Rendering, RenderingOption, as_data, faults_as
from scaler.errors import UserError
from scaler.policy.compile import PolicySet
from scaler.policy.signals import Pushed, RedisList, RedisSortedSet, RedisStream
from scaler.policy.whatif import Answer, GivenLoad, Question, concerned, what_if
from scaler.policy.wording import did_you_mean
from warmpool.seats import FleetName, PolicyName

SERVICE_SECONDS: Final = 10.0
"""How long a request takes where nobody said it: some hundred tokens of an answer."""
_LONGEST_SECONDS: Final = 86_400
_ALL: Final = "all"
_COUNTING: Final = (RedisList, RedisStream, RedisSortedSet, Pushed)
"""Signals that say how much waits in a work queue."""
_AGING: Final = (RedisStream, RedisSortedSet, Pushed)
"""Those that say for how long: entries of a Redis list have no time."""

Name = TypeVar("Name", FleetName, PolicyName)


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "explain",
        epilog=examples(
            "emberpool policy explain policies/shared-spares.yaml --load llama-8b=70",
            "emberpool policy explain policies/ --load chat=40 --queued chat=12 --oldest-wait chat=0.8",
            "emberpool policy explain policies/queue-workers.yaml --load grading=64 --backlog grading=3000",
            "emberpool policy explain policies/ --load chat=3 --serving chat=4 --for 600",
            "emberpool policy explain policies/ --load chat=40 --seats all --seats spares=2",
            "emberpool policy explain policies/ --load chat=40 -o json | jq '.answers[].seconds'",
        ),
    )(explain)


def _numbers(flag: str, value: str, text: str) -> Any:  # noqa: ANN401 - what typer makes an option of
    return typer.Option(flag, metavar=value, help=text, show_default=False)


def explain(  # noqa: PLR0917 - typer hands every option over by name
    paths: Paths,
    load: Annotated[
        list[str] | None,
        _numbers("--load", "POLICY=REQUESTS", "Requests in flight, held as they are. May be repeated."),
    ] = None,
    queued: Annotated[
        list[str] | None,
        _numbers("--queued", "POLICY=REQUESTS", "Requests that wait at the gateway beside those."),
    ] = None,
    oldest_wait: Annotated[
        list[str] | None,
        _numbers("--oldest-wait", "POLICY=SECONDS", "How long the oldest of them has waited."),
    ] = None,
    backlog: Annotated[
        list[str] | None,
        _numbers(
            "--backlog",
            "POLICY=ENTRIES",
            "Entries of its work queues (RedisList, RedisStream, RedisSortedSet, or pushed) that no engine was asked for"
            " yet. They count for how fast queues have to drain, and for nothing else.",
        ),
    ] = None,
    backlog_age: Annotated[
        list[str] | None,
        _numbers("--backlog-age", "POLICY=SECONDS", "How long the oldest of those has waited."),
    ] = None,
    service: Annotated[
        list[str] | None,
        _numbers(
            "--service", "POLICY=SECONDS", f"How long one request takes (default: {SERVICE_SECONDS:.0f})."
        ),
    ] = None,
    serving: Annotated[
        list[str] | None,
        _numbers("--serving", "POLICY=RESIDENTS", "Residents that serve at first (default: the floor)."),
    ] = None,
    seats: Annotated[
        list[str] | None,
        _numbers(
            "--seats",
            "FLEET=SEATS",
            "Seats that are up; all: as many as each fleet may have (default: those at rest: floors, spare.min,"
            " schedules). May be repeated.",
        ),
    ] = None,
    seconds: Annotated[
        int,
        typer.Option(
            "--for", min=0, max=_LONGEST_SECONDS, metavar="SECONDS", help="How long the load is held."
        ),
    ] = 120,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="When it begins, as 2026-12-24T08:00:00+01:00, for schedules and freezes (default: now).",
            show_default=False,
        ),
    ] = None,
    output: RenderingOption = Rendering.TEXT,
) -> int:
    """Say what the law would answer to a load: its terms, which of them rules, who serves where, and why.

    Nothing runs: the law is asked again and again in virtual time, with promotions and drains that take no time, no seat
    that starts, and before the first moment no request for as long as the law remembers. Only policies that share fleets
    with those that are named are looked at. Where a work queue asks for something, the text says how: what is in flight,
    and what waits divided by what one slot takes up within serving.queueDrainSeconds. How long a piece of work takes is
    known from those in flight; before the first one the law begins with one seat.
    """
    with faults_as(output):
        policies, _ = read_set(paths)
    given: dict[str, Mapping[PolicyName, float]] = {
        "load": _whole("--load", _read("--load", load, policies.policy_specs, "policy")),
        "queued": _whole("--queued", _read("--queued", queued, policies.policy_specs, "policy")),
        "wait": _read("--oldest-wait", oldest_wait, policies.policy_specs, "policy"),
        "backlog": _whole("--backlog", _read("--backlog", backlog, policies.policy_specs, "policy")),
        "age": _read("--backlog-age", backlog_age, policies.policy_specs, "policy"),
        "service": _read("--service", service, policies.policy_specs, "policy"),
    }
    _check_together(given)
    _check_queues(policies, given)
    question = Question(
        loads={name: _load_of(name, given) for name in _loaded(given)},
        serving=_whole("--serving", _read("--serving", serving, policies.policy_specs, "policy")),
        seats=_seats(policies, seats or ()),
        seconds=float(seconds),
        at=_moment(at),
    )
    part = concerned(policies, [*question.loads, *question.serving])
    question = replace(question, seats={n: s for n, s in question.seats.items() if n in part.fleets})
    answers = list(changing(_shown(what_if(part, question), question.seconds)))
    if output is Rendering.TEXT:
        emit(as_text(part, question, answers))
    else:
        emit(as_data(as_tree(part, question, answers), output))
    return OK


def _shown(answers: Iterable[Answer], seconds: float) -> Iterator[Answer]:
    """Say on a terminal how far it has come, for as long as it takes."""
    with chatter().status("") as status:
        for answer in answers:
            status.update(f"asked for {answer.seconds:.0f} s of {seconds:.0f} s")
            yield answer


# ------------------------------------------------------------------ reading


def _read(
    flag: str, texts: Sequence[str] | None, known: Mapping[Name, object], noun: str
) -> dict[Name, float]:
    """Read `NAME=NUMBER` of a repeated option.

    Raises:
        UserError: one of them is of another form, about nothing that is known, or about something twice.
    """
    names = {str(name): name for name in known}
    found: dict[Name, float] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        amount = _number(value)
        if not equals or amount is None:
            raise UserError(
                f"{flag} {text}: must be NAME=NUMBER", hint=f"such as {flag} {next(iter(names), 'chat')}=4"
            )
        if key not in names:
            there_are = f"there are: {', '.join(names)}"
            raise UserError(
                f"{flag} {text}: there is no {noun} {key}", hint=did_you_mean(key, names) or there_are
            )
        if names[key] in found:
            raise UserError(f"{flag} {text}: {noun} {key} is given twice", hint="keep one of the two")
        found[names[key]] = amount
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1e9 else None  # noqa: PLR2004 - what the law takes for a reading


def _whole(flag: str, found: Mapping[Name, float]) -> dict[Name, int]:
    for name, value in found.items():
        if not value.is_integer():
            hint = f"such as {flag} {name}={math.ceil(value)}: requests, residents and seats are counted"
            raise UserError(f"{flag} {name}={value:g}: must be a whole number", hint=hint)
    return {name: int(value) for name, value in found.items()}


def _check_together(given: Mapping[str, Mapping[PolicyName, float]]) -> None:
    """Refuse what would be ignored.

    Raises:
        UserError: an age of a queue that is empty, how long requests take of which there are none, or no load at all.
    """
    if not _loaded(given):
        raise UserError("no load is given", hint="such as --load chat=4, or --backlog batch=300")
    for name in given["wait"]:
        if not given["queued"].get(name):
            raise UserError(
                f"--oldest-wait {name}: no request of it waits", hint=f"give --queued {name}=N as well"
            )
    for name in given["age"]:
        if not given["backlog"].get(name):
            raise UserError(
                f"--backlog-age {name}: no work of it waits", hint=f"give --backlog {name}=N as well"
            )
    for name in given["service"]:
        if name not in _loaded(given):
            raise UserError(f"--service {name}: it has no load", hint=f"give --load {name}=N as well")


def _loaded(given: Mapping[str, Mapping[PolicyName, float]]) -> list[PolicyName]:
    """List the policies that have a load."""
    return list(dict.fromkeys((*given["load"], *given["queued"], *given["backlog"])))


def _check_queues(policies: PolicySet, given: Mapping[str, Mapping[PolicyName, float]]) -> None:
    """Refuse what no signal of a policy would ever say.

    Raises:
        UserError: a backlog, or the age of one, of a policy that nothing tells of it.
    """
    for flag, types, said in (("backlog", _COUNTING, "how much waits in"), ("age", _AGING, "the age of")):
        for name in given[flag]:
            if not any(isinstance(signal, types) for signal in policies.policies[name].spec.signals):
                option = "--backlog-age" if flag == "age" else "--backlog"
                known = ", ".join(each.__name__ for each in types)
                message = f"{option} {name}: none of its signals says {said} a work queue"
                raise UserError(message, hint=f"such signals have type {known}: add one to spec.signals")


def _seats(policies: PolicySet, texts: Sequence[str]) -> dict[FleetName, int]:
    """Read `FLEET=SEATS` and `all`; a fleet that is named has as many as is said of it."""
    named = [text for text in texts if text != _ALL]
    every = {name: spec.max_seats for name, spec in policies.fleet_specs.items()} if _ALL in texts else {}
    seats = _whole("--seats", _read("--seats", named, policies.fleet_specs, "fleet"))
    for name, count in seats.items():
        most = policies.fleet_specs[name].max_seats
        if count > most:
            raise UserError(
                f"--seats {name}={count}: the fleet may have {most}", hint="raise maxSeats in its document"
            )
    return every | seats


def _load_of(name: PolicyName, given: Mapping[str, Mapping[PolicyName, float]]) -> GivenLoad:
    service = given["service"].get(name, SERVICE_SECONDS)
    if service <= 0.0:
        raise UserError(
            f"--service {name}={service:g}: a request takes some time", hint="give more than 0 seconds"
        )
    return GivenLoad(
        in_flight=given["load"].get(name, 0.0),
        queued=given["queued"].get(name, 0.0),
        oldest_wait=given["wait"].get(name, 0.0),
        backlog=given["backlog"].get(name),
        backlog_age=given["age"].get(name, 0.0),
        service_seconds=service,
    )


def _moment(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC)
    hint = "such as 2026-12-24T08:00:00+01:00"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"--at {text}: there is no such time", hint=hint) from error
    if moment.tzinfo is None:
        raise UserError(f"--at {text}: lacks a time zone", hint=hint)
    return moment
