"""Residents, claims and seats as JSON: what agents report, annotations hold, and the command line prints.

One spelling everywhere: lowerCamelCase keys, times as Unix seconds, states in PascalCase. Unknown keys are ignored, so
that an older reader understands a newer writer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from warmpool.engines.capabilities import Capabilities, Capability, Change, Finding, Ground, Verification
from warmpool.engines.capabilities import Verdict as ChangeVerdict
from warmpool.errors import BadOrder
from warmpool.seats import (
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
    seat_value,
)
from warmpool.states import ResidentState

Json = Mapping[str, Any]

_CAPABILITIES = frozenset(map(str, Capability))
_GROUNDS = frozenset(map(str, Ground))
_CHANGES = frozenset(map(str, Change))
_VERDICTS = frozenset(map(str, ChangeVerdict))


def resident_to_json(resident: Resident) -> dict[str, Any]:
    """Render one resident."""
    return {
        "policy": resident.policy,
        "state": str(resident.state),
        "since": resident.since,
        "address": resident.address,
        "provenAt": resident.proven_at,
        "kvReleased": resident.kv_released,
        "inFlight": resident.in_flight,
        "restarts": resident.restarts,
        "failure": resident.failure,
        "pid": resident.pid,
        "memoryBytes": resident.memory_bytes,
        "phases": dict(resident.phases),
        "capabilities": None
        if resident.capabilities is None
        else _capabilities_to_json(resident.capabilities),
        "verification": None
        if resident.verification is None
        else _verification_to_json(resident.verification),
    }


def resident_from_json(data: Json) -> Resident:
    """Read one resident.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Resident(
            policy=PolicyName(_text(data["policy"])),
            state=ResidentState(_text(data["state"])),
            since=_number(data["since"]),
            address=_text(data.get("address", "")),
            proven_at=_optional(_number, data.get("provenAt")),
            kv_released=_flag(data.get("kvReleased", False)),
            in_flight=_whole(data.get("inFlight", 0)),
            restarts=_whole(data.get("restarts", 0)),
            failure=_text(data.get("failure", "")),
            pid=_optional(_whole, data.get("pid")),
            memory_bytes=_optional(_whole, data.get("memoryBytes")),
            phases={_text(name): _number(seconds) for name, seconds in data.get("phases", {}).items()},
            capabilities=_optional(_capabilities_from_json, data.get("capabilities")),
            verification=_optional(_verification_from_json, data.get("verification")),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a resident: {error!r}") from error


def _capabilities_to_json(found: Capabilities) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "version": found.version,
        "findings": {
            str(capability): {"ground": str(finding.ground), "reason": finding.reason}
            for capability, finding in found.findings.items()
        },
    }


def _capabilities_from_json(data: Json) -> Capabilities:
    """Read what an engine can do; capabilities and grounds of a newer agent are left out."""
    return Capabilities(
        kind=_text(data["kind"]),
        version=_text(data.get("version", "")),
        findings={
            Capability(name): Finding(
                ground=Ground(_text(finding["ground"])), reason=_text(finding.get("reason", ""))
            )
            for name, finding in data.get("findings", {}).items()
            if name in _CAPABILITIES and _text(finding["ground"]) in _GROUNDS
        },
    )


def _verification_to_json(verification: Verification) -> dict[str, Any]:
    return {
        "change": str(verification.change),
        "verdict": str(verification.verdict),
        "evidence": list(verification.evidence),
    }


def _verification_from_json(data: Json) -> Verification | None:
    """Read what an engine said after a change; None for a change or a verdict of a newer agent."""
    change, verdict = _text(data["change"]), _text(data["verdict"])
    if change not in _CHANGES or verdict not in _VERDICTS:
        return None
    return Verification(
        change=Change(change),
        verdict=ChangeVerdict(verdict),
        evidence=tuple(_text(line) for line in _items(data.get("evidence", ()))),
    )


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """Render a claim."""
    return {
        "id": claim.id,
        "policy": claim.policy,
        "operation": str(claim.operation),
        "holder": claim.holder,
        "epoch": claim.epoch,
        "since": claim.since,
        "deadline": claim.deadline,
        "leaving": claim.leaving,
    }


def claim_from_json(data: Json) -> Claim:
    """Read a claim.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Claim(
            id=_text(data["id"]),
            policy=PolicyName(_text(data["policy"])),
            operation=Operation(_text(data["operation"])),
            holder=_text(data["holder"]),
            epoch=_whole(data["epoch"]),
            since=_number(data["since"]),
            deadline=_number(data["deadline"]),
            leaving=_optional(lambda policy: PolicyName(_text(policy)), data.get("leaving")),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a claim: {error!r}") from error


def seat_to_json(seat: Seat) -> dict[str, Any]:
    """Render a seat with its derived value."""
    return {
        "name": seat.name,
        "uid": seat.uid,
        "version": seat.version,
        "fleet": seat.fleet,
        "node": seat.node,
        "gpus": list(seat.gpus),
        "value": str(seat_value(seat)),
        "residents": [resident_to_json(resident) for resident in seat.residents],
        "serving": sorted(seat.serving),
        "claim": None if seat.claim is None else claim_to_json(seat.claim),
        "verdict": str(seat.verdict),
        "admitted": seat.admitted,
        "ready": seat.ready,
        "reachable": seat.reachable,
        "terminating": seat.terminating,
        "lent": seat.lent,
        "createdAt": seat.created_at,
        "template": seat.template,
        "agent": seat.agent,
    }


def seat_from_json(data: Json) -> Seat:
    """Read a seat; the derived `value` is ignored.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Seat(
            name=SeatName(_text(data["name"])),
            uid=_text(data["uid"]),
            version=_text(data["version"]),
            fleet=FleetName(_text(data["fleet"])),
            node=_text(data.get("node", "localhost")),
            gpus=tuple(_text(gpu) for gpu in _items(data.get("gpus", ()))),
            residents=tuple(resident_from_json(resident) for resident in _items(data.get("residents", ()))),
            serving=frozenset(PolicyName(_text(policy)) for policy in _items(data.get("serving", ()))),
            claim=_optional(claim_from_json, data.get("claim")),
            verdict=Verdict(_text(data.get("verdict", "Ok"))),
            admitted=_flag(data.get("admitted", False)),
            ready=_flag(data.get("ready", False)),
            reachable=_flag(data.get("reachable", True)),
            terminating=_flag(data.get("terminating", False)),
            lent=_flag(data.get("lent", False)),
            created_at=_number(data.get("createdAt", 0.0)),
            template=_text(data.get("template", "")),
            agent=_text(data.get("agent", "")),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a seat: {error!r}") from error


# Types are checked, not converted: "false" is no flag and None no name, and a deadline that is NaN would never pass.

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)

_T = TypeVar("_T")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return str(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("a number is out of range") from error
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _whole(value: object) -> int:
    number = _number(value)
    if not number.is_integer():
        raise ValueError(f"{value!r} is no whole number")
    return value if isinstance(value, int) else int(number)


def _items(value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return value


def _optional(read: Callable[[Any], _T], value: object) -> _T | None:
    return None if value is None else read(value)
