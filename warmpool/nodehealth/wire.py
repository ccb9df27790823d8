"""The node agent's answers as JSON. `warmpool.nodehealth.client` reads them; docs/node-agent.md says what they mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warmpool.errors import BadOrder
from warmpool.nodehealth.account import DeviceAccount, Holding
from warmpool.nodehealth.handover import stops
from warmpool.nodehealth.verdicts import UNKNOWN, GpuVerdict, NodeVerdict, Reason
from warmpool.seats import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a caller is told.

    Attributes:
        accounts: the devices that it asked for, or has.
        complete: a process that isn't in it holds nothing, because everybody whom the caller could mean was looked at.
        age_seconds: how long ago the reading began.
        given: UUIDs of the devices that the kubelet gave the caller's pod; None if unknown or there is no pod.
        reason: why nothing of it is verified; empty where each device says so itself.
        notes: what else isn't as it should be.
    """

    accounts: Sequence[DeviceAccount]
    complete: bool
    age_seconds: float
    given: frozenset[str] | None = None
    reason: str = ""
    notes: Sequence[str] = ()


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON's values."""
    reason = answer.reason or next((each.reason for each in answer.accounts if each.reason), "")
    if not answer.accounts:
        reason = reason or "no device is known to be the caller's"
    return {
        "verified": not reason,
        "reason": reason,
        "complete": answer.complete,
        "ageMilliseconds": round(answer.age_seconds * 1000),
        "notes": list(answer.notes),
        "gpus": [_account_to_json(each, answer.given) for each in answer.accounts],
    }


def _account_to_json(account: DeviceAccount, given: frozenset[str] | None) -> dict[str, Any]:
    device, memory = account.device, account.memory
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "parent": device.parent or None,
        "totalBytes": None if memory is None else memory.total_bytes,
        "usedBytes": None if memory is None else memory.used_bytes,
        "freeBytes": None if memory is None else memory.free_bytes,
        "reservedBytes": None if memory is None else memory.reserved_bytes,
        "othersBytes": account.others_bytes,
        "unaccountedBytes": account.unaccounted_bytes,
        "given": None if given is None else device.uuid in given,
        "verified": not account.reason,
        "reason": account.reason,
        "processes": [_holding_to_json(each) for each in account.holdings],
    }


def _holding_to_json(holding: Holding) -> dict[str, Any]:
    return {
        "pid": holding.pid,
        "nsPid": holding.ns_pid,
        "bytes": holding.held_bytes,
        "pod": holding.owner.pod or None,
        "container": holding.owner.container or None,
        "ids": list(holding.ids),
        "pidNamespace": holding.namespace,
    }


# ---------------------------------------------------------------------- health


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAnswer:
    """What a caller is told of GPUs' health.

    Attributes:
        node: what is said of the node.
        gpus: UUIDs of the GPUs that it is about.
        epoch: how often a verdict has changed.
        reason: why nothing is told of a GPU that was asked for; empty if something is.
        sources: why a source doesn't work, by its name; empty where it does.
    """

    node: NodeVerdict
    gpus: Sequence[str]
    epoch: int
    reason: str
    sources: dict[str, str]


def health_to_json(answer: HealthAnswer) -> dict[str, Any]:
    """Return an answer about health as JSON's values."""
    node = answer.node
    return {
        "epoch": answer.epoch,
        "bootId": node.boot,
        "verdict": str(node.verdict),
        "expectedGpus": node.expected,
        "listedGpus": node.listed,
        "reason": answer.reason or node.reason,
        "sources": answer.sources,
        "gpus": [_gpu_to_json(gpu) for gpu in node.gpus if gpu.uuid in answer.gpus],
    }


def node_verdict_to_json(node: NodeVerdict) -> dict[str, Any]:
    """Render what is said of a node, for people."""
    return {
        "verdict": str(node.verdict),
        "expectedGpus": node.expected,
        "listedGpus": node.listed,
        "gpus": [_gpu_to_json(gpu) for gpu in node.gpus],
    }


def _gpu_to_json(gpu: GpuVerdict) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "verdict": gpu.word,
        "stops": stops(gpu),
        "since": _time(gpu.since),
        "until": _time(gpu.until),
        "ageMilliseconds": None if gpu.age_seconds is None else round(gpu.age_seconds * 1000),
        "reasons": [_reason_to_json(reason) for reason in gpu.reasons],
        "notes": list(gpu.notes),
    }


def _reason_to_json(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "verdict": str(reason.verdict),
        "since": _time(reason.since),
        "until": _time(reason.until),
        "count": reason.count,
        "text": reason.text,
        "clears": reason.clears,
    }


def node_verdict_from_json(data: Mapping[str, Any], at: float) -> NodeVerdict:
    """Read what is said of a node and all its GPUs.

    Args:
        data: an answer about health.
        at: when it was said, in Unix seconds.

    Raises:
        BadOrder: it isn't one.
    """
    try:
        return NodeVerdict(
            at=at,
            boot=str(data["bootId"]),
            verdict=Verdict(data["verdict"]),
            gpus=tuple(_gpu_from_json(gpu) for gpu in data["gpus"]),
            expected=int(data["expectedGpus"]),
            listed=int(data["listedGpus"]),
            reason=str(data["reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadOrder(f"not what a node agent says of its GPUs: {error!r}") from error


def _gpu_from_json(data: Mapping[str, Any]) -> GpuVerdict:
    word, age = str(data["verdict"]), data["ageMilliseconds"]
    return GpuVerdict(
        uuid=str(data["uuid"]),
        verdict=Verdict.OK if word == UNKNOWN else Verdict(word),
        known=word != UNKNOWN,
        since=_unix(data["since"]) or 0.0,
        until=_unix(data["until"]),
        age_seconds=None if age is None else float(age) / 1000,
        reasons=tuple(_reason_from_json(reason) for reason in data["reasons"]),
        notes=tuple(str(note) for note in data["notes"]),
    )


def _reason_from_json(data: Mapping[str, Any]) -> Reason:
    return Reason(
        code=str(data["code"]),
        verdict=Verdict(data["verdict"]),
        since=_unix(data["since"]) or 0.0,
        until=_unix(data["until"]),
        count=int(data["count"]),
        text=str(data["text"]),
        clears=str(data["clears"]),
    )


def _unix(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
