"""Which residents a seat has: the pod template's annotation `emberpool.dev/residents`, read and written.

The annotation is the one place that says it: a fleet's YAML lists no residents. It is a JSON list, one entry for each
engine of the seat, in the order in which they start when nothing else decides.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from scaler.errors import PolicyError, PolicyFault, UserError
from scaler.policy.base import (
    Broken,
    Name,
    PolicyModel,
    Unsound,
    as_far_as_sound,
    integer,
    sound_entries,
    text,
)
from scaler.policy.document import Document, Path, dotted, show
from scaler.policy.proof import Proof
from scaler.policy.source import parse_documents, validate
from scaler.policy.visible import UNSEEN, escaped
from scaler.policy.warmup import Warmup

RESIDENTS_ANNOTATION: Final = "emberpool.dev/residents"
"""Annotation of the pod template that holds the list."""

_MOST_MIB: Final = 1 << 26  # 64 TiB
_LIST: Final = "residents"
_PART: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_UNPRINTABLE: Final = re.compile("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that JSON may hold as they are and YAML may not (YAML 1.2.2, section 5.1)."""
_HINT: Final = "`emberpool fleet template` writes it"

Port = Annotated[int, integer("port", 1, 65_535, example=8001)]
Word = Annotated[
    str,
    text("text of at most 4096 characters", pattern=r"^[^\x00]*$", longest=4096, example="vllm"),
]


class ResidentsInvalid(UserError):
    """The annotation can't be used; holds every fault that was found.

    Attributes:
        faults: what is wrong, with paths from the list on.
    """

    def __init__(self, faults: tuple[Broken, ...]) -> None:
        lines = [
            f"{dotted(fault.path)}: {fault.message}" if fault.path else fault.message for fault in faults
        ]
        super().__init__("\n".join(lines), hint=faults[0].hint)
        self.faults = faults


class SeatResident(PolicyModel):
    """One engine of the seat."""

    policy: Name
    """The policy that it belongs to; a seat has one resident of a policy."""
    container: Name | None = None
    """Container that holds it, where each resident has a container of its own. Give either this or `command`."""
    command: Annotated[tuple[Word, ...], Field(min_length=1)] | None = None
    """Program and arguments, where the launcher starts all engines in one container."""
    port: Port
    """Port at which it is reached on the pod: its guard's."""
    engine_port: Port | None = None
    """Port at which the engine itself listens, behind a guard that forwards. By default it listens on `port`, with the
    guard inside it."""
    paused_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=16_800)] | None = None
    """GPU memory that it holds while it is paused and has given back its KV memory. By default agents measure it."""
    kv_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=40_960)] | None = None
    """GPU memory that it takes beyond that while it serves. By default agents measure it."""
    activation_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=2048)] | None = None
    """What of computing comes to that, at its peak, where it isn't part of `kvMiB`."""
    proof: Proof | None = None
    """What it has to answer, as its policy says it. By default what the agent's configuration says."""
    target_in_flight: Annotated[int, integer("requests in flight", 1, 100_000, example=32)] | None = None
    """Requests that it is to hold at once, as its policy says it of the fleet: warm-up goes as far. A policy that comes to ask for
    fewer leaves it as it is, for that is no reason to replace all seats."""
    graph_capture: Literal["AtStart", "WhilePaused"] | None = None
    """When its engine captures its CUDA graphs, as its policy says it; by default before it is ready."""
    warmup: Warmup | None = None
    """Which requests it computes before it is proven, as its policy says it."""

    @property
    def compute_mib(self) -> int | None:
        """GPU memory that it takes beyond what it holds paused, in MiB; None where nobody has said it."""
        return None if self.kv_mib is None else self.kv_mib + (self.activation_mib or 0)

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that there is one way to start it, and that the guard and the engine don't share a port."""
        yield from as_far_as_sound(self._started(), self._ports())

    def _started(self) -> Iterator[Broken]:
        if self.container is None and self.command is None:
            yield Broken(
                path=(), message="has neither container nor command", hint="say which of them starts it"
            )
        if self.container is not None and self.command is not None:
            yield Broken(path=("command",), message="container is given as well", hint="keep one of the two")

    def _ports(self) -> Iterator[Broken]:
        if self.engine_port == self.port:
            message = f"is the resident's own port {self.port}"
            hint = (
                "give the engine another port, or leave enginePort out where the guard is inside the engine"
            )
            yield Broken(path=("enginePort",), message=message, hint=hint)


class _Annotation(PolicyModel):
    """The list under a key, as the models' machinery wants it."""

    residents: Annotated[tuple[SeatResident, ...], Field(min_length=1, max_length=100)]
    """The engines of the seat."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that policies and ports are those of one resident."""
        yield from as_far_as_sound(self._policies_of_their_own(), self._ports_of_their_own())

    def _policies_of_their_own(self) -> Iterator[Broken]:
        policies: dict[str, int] = {}
        for index, each in sound_entries(self.residents):
            with suppress(Unsound):
                first = policies.setdefault(each.policy, index)
                if first != index:
                    message = f"{each.policy} has a resident already, [{first}]"
                    yield Broken(path=(_LIST, index, "policy"), message=message, hint="keep one of the two")

    def _ports_of_their_own(self) -> Iterator[Broken]:
        ports: dict[int, int] = {}
        for index, each in sound_entries(self.residents):
            for key in ("port", "engine_port"):
                with suppress(Unsound):
                    port = getattr(each, key)
                    first = index if port is None else ports.setdefault(port, index)
                    if first != index:
                        message = f"port {port} is [{first}]'s already, and all of them listen on one pod"
                        yield Broken(
                            path=(_LIST, index, to_camel(key)),
                            message=message,
                            hint="give each a port of its own",
                        )


def parse_residents(written: str) -> tuple[SeatResident, ...]:
    """Read the annotation.

    Raises:
        ResidentsInvalid: it isn't JSON, or isn't a list of residents as described above.
    """
    try:
        listed = json.loads(written, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg} at character {error.pos + 1}"
        raise ResidentsInvalid((Broken(path=(), message=message, hint=_HINT),)) from error
    except (RecursionError, ValueError) as error:
        message = f"is not JSON that can be read: {error}"
        raise ResidentsInvalid((Broken(path=(), message=message, hint=_HINT),)) from error
    if not isinstance(listed, list):
        message = f"must be a JSON list of residents, is {show(listed)}"
        raise ResidentsInvalid((Broken(path=(), message=message, hint=_HINT),))
    return _validated(listed)


def residents_at(document: Document, path: Path) -> tuple[SeatResident, ...]:
    """Read the annotation where a manifest has it.

    Args:
        document: the manifest.
        path: the annotation's place in it, which exists.

    Raises:
        PolicyError: what `parse_residents` raises, with the annotation's place.
    """
    written: Any = document.data
    for part in path:
        written = written[part]
    if not isinstance(written, str):
        message = f"must be a text that holds JSON, is {show(written)}"
        raise PolicyError((document.fault(path, message, _HINT),))
    try:
        return parse_residents(written)
    except ResidentsInvalid as error:
        line, column = document.position(path)
        raise PolicyError(
            tuple(
                PolicyFault(
                    file=document.file,
                    line=line,
                    column=column,
                    path=dotted(path + each.path),
                    message=each.message,
                    hint=each.hint,
                )
                for each in error.faults
            )
        ) from error


def dump_residents(residents: Sequence[SeatResident]) -> str:
    """Write the annotation: compact, keys in the order of the format, nothing that isn't known."""
    written = json.dumps(
        [each.model_dump(mode="json", by_alias=True, exclude_defaults=True) for each in residents],
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], written)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {show(twice)} is there twice")
    return found


def _validated(listed: list[Any]) -> tuple[SeatResident, ...]:
    """Check the list with the machinery of the file formats, whose YAML reads JSON."""
    written = json.dumps({_LIST: listed}, ensure_ascii=False)
    allowed = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
    seen = UNSEEN.sub(lambda found: escaped(found[0]), allowed)
    try:
        (document,) = parse_documents(seen, RESIDENTS_ANNOTATION)
        return validate(_Annotation, document).residents
    except PolicyError as error:
        faults = tuple(
            Broken(path=_inner(fault.path), message=fault.message, hint=fault.hint) for fault in error.faults
        )
        raise ResidentsInvalid(faults) from error


def _inner(path: str) -> Path:
    """Return the path from the list on, of a dotted one."""
    parts = _PART.findall(path)[1:]
    return tuple(int(index) if index else key for index, key in parts)
