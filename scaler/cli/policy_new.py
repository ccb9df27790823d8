"""`emberpool policy new`: a first policy file, with its explanations, by asking."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
from pydantic import TypeAdapter, ValidationError

from scaler.cli.failures import OK, report
from scaler.cli.options import examples, path_of
from scaler.cli.output import emit, note
from scaler.cli.questions import Questions
from scaler.errors import PolicyError, UserError
from scaler.policy.base import Name
from scaler.policy.compile import PolicySet, compile_contents
from scaler.policy.document import Contents, load_contents, parse
from scaler.policy.fleet import KvWhenPaused, ResizedBy, SpareMode
from scaler.policy.new import (
    SIGNAL_FORMS,
    NewFleet,
    NewPolicy,
    NewSet,
    NewSignal,
    free_ports,
    policy_name,
    signal_of,
    written,
)
from scaler.policy.scaling_policy import EngineType, ModelName
from scaler.policy.wording import closest
from warmpool.seats import FleetName, PolicyName

_NAME: Final = TypeAdapter(Name)
_MODEL: Final = TypeAdapter(ModelName)
_STDOUT: Final = Path("-")
_MOST_GPUS: Final = 16
_PATIENT_SECONDS = "20"
"""First token of work that can wait, unless somebody says otherwise: a bucket edge of the histograms of engines and of the
gateway, so that it can be measured, and less than the 60 seconds after which the gateway turns away what waits."""
_MOST_SEATS: Final = 100_000
_MOST_IN_FLIGHT: Final = 100_000
_LONGEST_TTFT: Final = 3600.0
_HIGHEST_PRIORITY: Final = 1_000_000

Choice = TypeVar("Choice", bound=StrEnum)


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "new",
        epilog=examples(
            "emberpool policy new                                  # asks",
            "emberpool policy new chat --max-seats 4 --target-in-flight 32",
            "emberpool policy new --model chat --model code --fleet shared --max-seats 6 --target-in-flight 16 --yes",
            "emberpool policy new code --shared-fleet spares --beside policies/ --max-seats 4 --target-in-flight 32",
            "emberpool policy new batch --fleet spares --beside policies/ --target-in-flight 64 --preemptible"
            " --priority -10 --signal RedisStream=jobs/workers",
        ),
    )(new)


def new(  # noqa: PLR0917 - typer hands every option over by name
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of the policy, and of its fleet.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="A model's name in requests (default: NAME). Several get a policy each, named after them.",
            show_default=False,
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="NAME", help="Fleet that it serves on.", show_default=False),
    ] = None,
    shared_fleet: Annotated[
        str | None,
        typer.Option(
            "--shared-fleet",
            metavar="NAME",
            help="Fleet of spares behind the models' own fleets.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Kubernetes namespace of everything.")
    ] = "default",
    engine: Annotated[
        EngineType | None, typer.Option("--engine", help="Engine that serves it.", show_default=False)
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", min=0, max=_MOST_GPUS, metavar="N", help="GPUs of one seat.", show_default=False
        ),
    ] = None,
    target_in_flight: Annotated[
        int | None,
        typer.Option(
            "--target-in-flight",
            min=1,
            max=_MOST_IN_FLIGHT,
            metavar="N",
            help="Requests in flight that one resident holds.",
            show_default=False,
        ),
    ] = None,
    max_seats: Annotated[
        int | None,
        typer.Option(
            "--max-seats",
            min=1,
            max=_MOST_SEATS,
            metavar="N",
            help="Seats that a fleet may have at most.",
            show_default=False,
        ),
    ] = None,
    spare: Annotated[
        int | None,
        typer.Option("--spare", min=0, max=_MOST_SEATS, metavar="N", help="Spare seats.", show_default=False),
    ] = None,
    serving_min: Annotated[
        int | None,
        typer.Option(
            "--serving-min",
            min=0,
            max=_MOST_SEATS,
            metavar="N",
            help="Residents of each model that always serve.",
            show_default=False,
        ),
    ] = None,
    ttft: Annotated[
        float | None,
        typer.Option(
            "--ttft",
            min=0.001,
            max=_LONGEST_TTFT,
            metavar="SECONDS",
            help="Time to first token.",
            show_default=False,
        ),
    ] = None,
    resized_by: Annotated[
        ResizedBy | None,
        typer.Option("--resized-by", help="Who writes the workload's replicas.", show_default=False),
    ] = None,
    serving_max: Annotated[
        int | None,
        typer.Option(
            "--serving-max",
            min=1,
            max=_MOST_SEATS,
            metavar="N",
            help="Residents of each model that serve at most (default: as many as there are seats).",
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            min=-_HIGHEST_PRIORITY,
            max=_HIGHEST_PRIORITY,
            metavar="N",
            help="Who goes first when seats are short: higher numbers do (default: 0).",
            show_default=False,
        ),
    ] = None,
    preemptible: Annotated[
        bool,
        typer.Option("--preemptible", help="It is work that can wait: it only borrows spare seats."),
    ] = False,
    signal: Annotated[
        list[str] | None,
        typer.Option(
            "--signal",
            metavar="TYPE",
            help=f"Where its load is read (default: Pushed); may be repeated: {', '.join(SIGNAL_FORMS.values())}.",
            show_default=False,
        ),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside",
            metavar="PATH",
            help="Policies that there are already: their fleets can be named and are not written again.",
            parser=path_of,
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write (default: NAME.yaml); - is stdout.",
            show_default=False,
            parser=path_of,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print to stdout, and write nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: what no flag says gets its default.")
    ] = False,
) -> int:
    """Write a first policy file: a fleet, and a policy for each model, with comments that explain them.

    On a terminal, what no flag says is asked for. The file is checked before it is written. With --beside, fleets that
    there are already are looked for in the policy's own namespace (-n), and a new one whose name looks like theirs is asked
    about.
    """
    existing = load_contents(beside) if beside else []
    known = _known(existing)
    ask = sys.stdin.isatty() and not yes
    questions = Questions(ask=ask)
    names = _names(questions, known, name, model, _FleetNames(own=fleet, shared=shared_fleet))
    _check_namespace(names, known, _checked("--namespace", namespace, _name))
    sized = ask or max_seats is not None
    _check_fleets(_FleetNames(own=fleet, shared=shared_fleet), known, sized=sized)
    path = _STDOUT if dry_run else output or Path(f"{names.file}.yaml")
    _check_free(path, force=force)
    flags = _Flags(
        engine=engine,
        gpus=gpus,
        target_in_flight=target_in_flight,
        max_seats=max_seats,
        spare=spare,
        serving_min=serving_min,
        ttft=ttft,
        resized_by=resized_by,
        serving_max=serving_max,
        priority=priority,
        preemptible=preemptible,
        signals=_signals(signal or (), several=len(names.policies) > 1),
    )
    _check_spares(names, flags)
    wanted = _wanted(questions, names, flags, known)
    _note_kept_memory(wanted)
    _note_nothing_to_lend(wanted)
    text = written(_new_set(wanted, namespace))
    try:
        _write(text, path, existing)
    except PolicyError as error:
        code = report(error)
        _note_nothing_written(questions, dry_run=path == _STDOUT)
        return code
    if path != _STDOUT:
        note(f"wrote {path}")
        note("completion and hover in editors: emberpool policy schema --write schema, beside the file")
        note(f"next: emberpool policy lint {shlex.join(map(str, [*(beside or ()), path]))}")
    return OK


# ------------------------------------------------------------------ names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """What everything is called.

    Attributes:
        policies: per policy, the model's name in requests.
        own: per policy, the fleet that is its first.
        shared: the fleet behind them; None for none.
        file: what a file about it would be called.
    """

    policies: dict[str, str]
    own: dict[str, str]
    shared: str | None
    file: str

    @property
    def lived_on(self) -> list[str]:
        """All fleets that they live on, the shared one last."""
        shared = [self.shared] if self.shared else []
        return list(dict.fromkeys([*self.own.values(), *shared]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FleetNames:
    """What the command line calls the fleets."""

    own: str | None
    shared: str | None


def _names(
    questions: Questions,
    known: PolicySet | None,
    name: str | None,
    models: list[str] | None,
    fleets: _FleetNames,
) -> _Names:
    fleet, shared = fleets.own, fleets.shared
    for flag, given in (("NAME", name), ("--fleet", fleet), ("--shared-fleet", shared)):
        _checked(flag, given, _name) if given else None
    for each in models or ():
        _checked("--model", each, _model)
    if not models:
        why = "What the policy is called: a name for the model as operators say it."
        name = questions.value("NAME", name, why=why, read=_free_name(known))
        questions.check()
        assert name is not None
        models = [name]
    several = len(models) > 1
    policies = {
        name if name and not several else _checked("--model", policy_name(each), _name): each
        for each in models
    }
    if len(policies) < len(models):
        raise UserError(
            "two of the models would have policies of one name", hint="write a file for each of them"
        )
    why = "Fleet of spare seats that stands behind this and other models, so that they share them; empty for none."
    shared = questions.value("--shared-fleet", shared, why=why, read=_name_or_nothing, default="") or None
    if several and shared and fleet:
        hint = "leave out --fleet: each model gets a fleet of its own, named after it, and the shared one behind it"
        raise UserError(
            "--fleet names one fleet, and there are several models with --shared-fleet", hint=hint
        )
    if several and not shared:
        why = "Fleet whose seats these models share: all of them are resident on each of its seats."
        fleet = questions.value("--fleet", fleet or name, why=why, read=_name, default="shared")
    own = {policy: fleet or policy for policy in policies}
    if shared in own.values():
        raise UserError(
            f"fleet {shared} can't stand behind itself", hint="give --fleet and --shared-fleet two names"
        )
    return _Names(
        policies=policies, own=own, shared=shared, file=name or fleet or shared or next(iter(policies))
    )


def _check_namespace(names: _Names, known: PolicySet | None, namespace: str) -> None:
    """Look for the fleets in the namespace of the policy.

    Raises:
        UserError: one of them is in another.
    """
    for fleet in names.lived_on:
        there = known.fleets.get(FleetName(fleet)) if known else None
        if there is not None and there.metadata.namespace != namespace:
            theirs = there.metadata.namespace
            message = f"there is no fleet {fleet} in namespace {namespace}, and one in {theirs}"
            raise UserError(message, hint=f"-n {theirs}: a policy and its fleets share one namespace")


def _check_fleets(given: _FleetNames, known: PolicySet | None, *, sized: bool) -> None:
    """Ask whether a fleet is meant that is there, where the name of a new one looks like it.

    Args:
        given: the names.
        known: what is there.
        sized: it is said, or will be asked for, how large a new fleet may be.

    Raises:
        UserError: it looks like one, and a new one can't be written.
    """
    for flag, name in (("--fleet", given.own), ("--shared-fleet", given.shared)):
        there = known.fleets if known else {}
        meant = closest(name, there) if name and FleetName(name) not in there else ""
        if not meant:
            continue
        if not sized:
            hint = f"did you mean {meant}? If it is a new one, say with --max-seats how large it may be"
            raise UserError(f"{flag} {name}: there is no such fleet", hint=hint)
        note(f"fleet {name} is a new one; there is a fleet {meant}")


# ------------------------------------------------------------------ numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    """What the command line said."""

    engine: EngineType | None
    gpus: int | None
    target_in_flight: int | None
    max_seats: int | None
    spare: int | None
    serving_min: int | None
    ttft: float | None
    resized_by: ResizedBy | None
    serving_max: int | None
    priority: int | None
    preemptible: bool
    signals: tuple[NewSignal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Everything that goes into the file."""

    names: _Names
    fleets: list[NewFleet]
    engine: EngineType
    target_in_flight: int
    serving_min: int
    ttft: float
    flags: _Flags
    known: PolicySet | None


def _wanted(questions: Questions, names: _Names, flags: _Flags, known: PolicySet | None) -> _Wanted:
    """Collect all numbers.

    Raises:
        UserError: one is missing and can't be asked for, or is for a fleet that there is already.
    """
    there = known.fleets if known else {}
    own = [fleet for fleet in dict.fromkeys(names.own.values()) if FleetName(fleet) not in there]
    shared = names.shared if names.shared and FleetName(names.shared) not in there else None
    engine = questions.value(
        "--engine",
        flags.engine,
        why=f"Engine that serves the model: {', '.join(EngineType)}.",
        read=_one_of(EngineType),
        default="VLLM",
    )
    target = questions.value(
        "--target-in-flight",
        flags.target_in_flight,
        why="Requests in flight that one resident holds. Measure it: the highest concurrency at which the engine still "
        "keeps its time to first token.",
        read=_whole(1, _MOST_IN_FLIGHT),
    )
    floor = questions.value(
        "--serving-min",
        flags.serving_min,
        why="Residents of each model that always serve, as an HPA's minReplicas.",
        read=_whole(0, _most_floor(names, flags) if own else _MOST_SEATS),
        default="0" if flags.preemptible else "1",
    )
    ttft = questions.value(
        "--ttft",
        flags.ttft,
        why="Time to first token that users may expect, in seconds. A queue that puts it at risk begins a burst.",
        read=_positive,
        default=_PATIENT_SECONDS if flags.preemptible else "1",
    )
    fleets = _fleets(questions, names, flags, _NewFleets(own=own, shared=shared, floor=floor or 0))
    questions.check()
    assert engine is not None
    assert target is not None
    assert floor is not None
    assert ttft is not None
    return _Wanted(
        names=names,
        fleets=fleets,
        engine=engine,
        target_in_flight=target,
        serving_min=floor,
        ttft=ttft,
        flags=flags,
        known=known,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewFleets:
    """Fleets that there aren't yet.

    Attributes:
        own: those that come first for a policy.
        shared: the one behind them; None if there is none, or it is there already.
        floor: residents of each model that always serve.
    """

    own: list[str]
    shared: str | None
    floor: int


def _sharing(names: _Names) -> int:
    """Return how many models serve on one fleet of their own."""
    return max(Counter(names.own.values()).values())


def _own_spares(names: _Names, flags: _Flags) -> int:
    """Return the spare seats that the command line wants beside what always serves."""
    return 0 if names.shared else flags.spare or 0


def _check_spares(names: _Names, flags: _Flags) -> None:
    """Refuse more spare seats than a fleet may have before anything is asked that depends on either.

    Raises:
        UserError: there are more.
    """
    if flags.max_seats is not None and _own_spares(names, flags) > flags.max_seats:
        message = f"--spare {flags.spare} is more than --max-seats {flags.max_seats}"
        raise UserError(
            message, hint="spare seats are among those of --max-seats: lower --spare, or raise --max-seats"
        )


def _most_floor(names: _Names, flags: _Flags) -> int:
    """Return how many residents of each model may always serve on the seats that the command line allows."""
    if flags.max_seats is None:
        return _MOST_SEATS
    return max(0, flags.max_seats - _own_spares(names, flags)) // _sharing(names)


def _fleets(questions: Questions, names: _Names, flags: _Flags, new: _NewFleets) -> list[NewFleet]:
    """Collect what the fleets need that there aren't yet.

    Each answer is held against those before it, so that none of them has to be given again.
    """
    own, shared = new.own, new.shared
    if not own and not shared:
        for flag, given in (
            ("--max-seats", flags.max_seats),
            ("--gpus", flags.gpus),
            ("--spare", flags.spare),
            ("--resized-by", flags.resized_by),
        ):
            if given is not None:
                raise UserError(f"{flag} is for a new fleet, and there is none", hint=f"leave out {flag}")
        return []
    seats = flags.max_seats if own else flags.max_seats or 0
    seats = questions.value(
        "--max-seats",
        seats,
        why="Seats (pods) that a fleet may have at most, as an HPA's maxReplicas: what it may cost.",
        read=_whole(max(1, new.floor * _sharing(names) + _own_spares(names, flags)), _MOST_SEATS),
    )
    gpus = questions.value(
        "--gpus",
        flags.gpus,
        why="GPUs of one seat; 0 for engines on CPU.",
        read=_whole(0, _MOST_GPUS),
        default="1",
    )
    holds_spares = shared is not None or names.shared is None
    if flags.spare is not None and not holds_spares:
        message = f"--spare is for the fleet that holds the spares, and {names.shared} is there already"
        raise UserError(message, hint="leave out --spare, or change spare.min in its document")
    most = _MOST_SEATS // 2  # a bridge has room for twice as many
    if not names.shared:
        most = max(0, (seats or _MOST_SEATS) - new.floor * _sharing(names))
    given = flags.spare if holds_spares else 0
    if given is None and most == 0:
        note(f"no spare seat: {seats} at most leave no room beside those that always serve")
        given = 0
    spare = questions.value(
        "--spare",
        given,
        why="Spare seats: how many seats' worth of burst is served at once, before any new pod has started.",
        read=_whole(0, most),
        default="1",
    )
    resized_by = questions.value(
        "--resized-by",
        flags.resized_by,
        why=f"Who writes the workload's replicas: {' or '.join(ResizedBy)}. With Keda, a ScaledObject has to.",
        read=_one_of(ResizedBy),
        default="Emberpool",
    )
    if seats is None or gpus is None or spare is None or resized_by is None:
        return []
    fleets = [
        NewFleet(
            name=fleet,
            policies=tuple(policy for policy, first in names.own.items() if first == fleet),
            bridge=False,
            gpus=gpus,
            max_seats=seats,
            spare=0 if names.shared else spare,
            resized_by=resized_by,
            lends=flags.preemptible and not names.shared,
        )
        for fleet in own
    ]
    if shared:
        bridge = NewFleet(
            name=shared,
            policies=tuple(names.policies),
            bridge=True,
            gpus=gpus,
            max_seats=max(1, 2 * spare),
            spare=spare,
            resized_by=resized_by,
            lends=flags.preemptible,
        )
        fleets.append(bridge)
    return fleets


def _note_kept_memory(wanted: _Wanted) -> None:
    """Say it where a model moves in on seats that were made for one."""
    for name in dict.fromkeys(wanted.names.own.values()):
        fleet = wanted.known.fleets.get(FleetName(name)) if wanted.known else None
        if fleet is not None and fleet.spec.seat.kv_when_paused is KvWhenPaused.KEEP:
            note(f"fleet {name} has kvWhenPaused: Keep; residents that share its seats need Release")


def _note_nothing_to_lend(wanted: _Wanted) -> None:
    """Say it where work that can wait is to borrow from fleets that there are already, and none of them lends."""
    lived_on, known = wanted.names.lived_on, wanted.known
    there = (
        []
        if known is None
        else [known.fleets[name] for name in map(FleetName, lived_on) if name in known.fleets]
    )
    if not wanted.flags.preemptible or len(there) < len(lived_on):
        return
    if all(fleet.spec.spare.mode is SpareMode.FIXED and not fleet.spec.schedules for fleet in there):
        listed = ", ".join(sorted(fleet.metadata.name for fleet in there))
        note(
            f"fleet {listed} keeps its spares for bursts and lends none; spare.mode: Auto lends those above spare.min"
        )


def _new_set(wanted: _Wanted, namespace: str) -> NewSet:
    names = wanted.names
    ports: list[int | None] = [None] * len(names.policies)
    if wanted.engine is not EngineType.REFERENCE:
        ports = [*free_ports(wanted.known, names.lived_on, len(names.policies))]
    return NewSet(
        namespace=namespace,
        fleets=tuple(wanted.fleets),
        policies=tuple(
            NewPolicy(
                name=policy,
                model=model,
                fleets=(names.own[policy], *([names.shared] if names.shared else [])),
                engine=wanted.engine,
                port=port,
                target_in_flight=wanted.target_in_flight,
                ttft_milliseconds=max(1, round(wanted.ttft * 1000)),
                serving_min=wanted.serving_min,
                serving_max=wanted.flags.serving_max,
                priority=wanted.flags.priority,
                preemptible=wanted.flags.preemptible,
                signals=wanted.flags.signals,
            )
            for (policy, model), port in zip(names.policies.items(), ports, strict=True)
        ),
    )


# ------------------------------------------------------------------ reading answers


def _checked(flag: str, given: str, read: Callable[[str], str]) -> str:
    try:
        return read(given)
    except ValueError as error:
        raise UserError(f"{flag} {given}: {error}", hint="such as llama-8b") from error


def _name(text: str) -> str:
    try:
        return _NAME.validate_python(text)
    except ValidationError as error:
        message = "must be lower-case letters, digits and -, at most 63, a letter or digit first and last"
        raise ValueError(message) from error


def _free_name(known: PolicySet | None) -> Callable[[str], str]:
    def read(text: str) -> str:
        name = _name(text)
        taken = known and (known.policies.get(PolicyName(name)) or known.policy_of(name))
        if taken:
            raise ValueError(f"{name} is taken by a policy that there is already")
        return name

    return read


def _signals(texts: Sequence[str], *, several: bool) -> tuple[NewSignal, ...]:
    signals = []
    for text in texts:
        try:
            signals.append(signal_of(text))
        except ValueError as error:
            raise UserError(f"--signal {text}: {error}", hint="such as --signal RedisList=jobs") from error
        if several and signals[-1].values:
            message = f"--signal {text} is one model's, and there are several"
            raise UserError(message, hint="write a file for each of them: its load would count for all")
    return tuple(signals)


def _name_or_nothing(text: str) -> str:
    return _name(text) if text else ""


def _model(text: str) -> str:
    try:
        return _MODEL.validate_python(text)
    except ValidationError as error:
        raise ValueError("must be printable ASCII without spaces, at most 256 characters") from error


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return read


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= _LONGEST_TTFT:  # noqa: PLR2004 - a millisecond, the smallest that can be written
        raise ValueError(f"must be seconds, from 0.001 to {_LONGEST_TTFT:.0f}")
    return value


def _one_of(choices: type[Choice]) -> Callable[[str], Choice]:
    def read(text: str) -> Choice:
        by_fold = {str(choice).lower(): choice for choice in choices}
        if text.lower() not in by_fold:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return by_fold[text.lower()]

    return read


# ------------------------------------------------------------------ files


def _known(existing: list[Contents]) -> PolicySet | None:
    return compile_contents(existing) if existing else None


def _check_free(path: Path, *, force: bool) -> None:
    if path != _STDOUT and path.exists() and not force:
        raise UserError(
            f"{path} is there already", hint="choose another --output, or overwrite it with --force"
        )


def _write(text: str, path: Path, existing: list[Contents]) -> None:
    """Check the file, and write it.

    Raises:
        PolicyError: it can't be used together with what there is.
        UserError: it can't be written.
    """
    if path == _STDOUT:
        emit(text.rstrip("\n"))
    compile_contents([*existing, parse(text, "stdout" if path == _STDOUT else str(path))])
    if path == _STDOUT:
        return
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(
            f"{path} can't be written: {error.strerror or error}", hint="choose another --output"
        ) from error


def _note_nothing_written(questions: Questions, *, dry_run: bool) -> None:
    """Keep what somebody has typed: they needn't be asked again for what they only want to change a part of."""
    note("nothing was written" + ("" if dry_run else "; --dry-run shows the text that these lines are of"))
    if questions.answers:
        note(f"your answers as arguments, to give again with a change: {questions.answers}")
