"""The node agent's answers as JSON. `warmpool.nodehealth.client` reads them; docs/node-agent.md says what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warmpool.nodehealth.account import DeviceAccount, Holding


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
