"""Kubernetes' Events of what the loop records, so that `kubectl describe` shows it: told afterwards, and never waited for.

What the cluster's adapter does by itself it tells by itself: sizes that drift, seats that are deleted, conditions.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from scaler.cluster.kube.events import Event, Subject, demoted, promoted, promotion_failed, resized
from scaler.cluster.kube.resources import LEASE, POD
from scaler.runtime.reload import Outcome
from warmpool.healing import Cause
from warmpool.seats import PolicyName

_FAILED: Final = frozenset({Outcome.REJECTED, Outcome.FAILED})
_NOT_DONE: Final = frozenset({"Refused", "Lapsed", "Failed"})
"""What may come of an order that isn't carried out."""
_MOST_SAID: Final = 3
"""Faults of a policy file that an Event says; `emberpool policy status` says all."""

_CAUSES: Final = frozenset({Cause.CRASH_LOOP, Cause.CANNOT_START, Cause.PRE_FLIGHT})
"""What is wrong with a seat's starts, as reasons of Events begin; a slow one begins with BadStarts."""


class KubeEvents:
    """Makes Events of records.

    Args:
        tell: takes an Event; never waits.
        namespace: where everything is.
        lease: name of the Lease, which is what Events about the controller itself are about.
        uids: returns a seat's UID by its name; empty where it is gone.
        workload: names a fleet's workload; None where there is none.
    """

    def __init__(
        self,
        tell: Callable[[Event], None],
        namespace: str,
        lease: str,
        uids: Callable[[str], str],
        workload: Callable[[str], Subject | None],
    ) -> None:
        self._tell = tell
        self._namespace = namespace
        self._lease = lease
        self._uids = uids
        self._workload = workload

    def take(self, record: Mapping[str, Any]) -> None:
        """Take one record of the event log."""
        event = self._event(record)
        if event is not None:
            self._tell(event)

    def _event(self, record: Mapping[str, Any]) -> Event | None:
        match record:
            case {"kind": "promotion", "seat": seat, "policy": policy, "error": str(why)} if why:
                return promotion_failed(self._pod(seat), policy, why)
            case {"kind": "promotion", "seat": seat, "policy": policy, "rotation": at, "decision": decision}:
                return promoted(self._pod(seat), policy, max(0.0, at - decision))
            case {"kind": "demotion", "seat": seat, "policy": policy, "outcome": "Demoted"}:
                return demoted(self._pod(seat), PolicyName(policy))
            case {"kind": "resize", "fleet": fleet, "from": before, "to": after} if before != after:
                workload = self._workload(fleet)
                return None if workload is None else resized(workload, before, after, "as decided")
            case {"kind": "healing", "seat": seat, "outcome": outcome, "why": why, "heldBack": held}:
                cause = record.get("cause")
                return Event(
                    subject=self._pod(seat),
                    action="SelfHealing",
                    reason=f"{cause if cause in _CAUSES else 'BadStarts'}{outcome}",
                    note=f"{why}; not replaced: {held}" if held else why,
                    warning=True,
                )
            case {"kind": "order", "outcome": str(outcome)}:
                return self._ordered(record, outcome)
            case {"kind": "policies", "outcome": outcome} if outcome in _FAILED:
                return self._not_reloaded(record)
            case _:
                return None

    def _pod(self, name: str) -> Subject:
        return Subject.of(POD, self._namespace, name, self._uids(name))

    def _ordered(self, record: Mapping[str, Any], outcome: str) -> Event | None:
        subject = self._workload(record["fleet"]) if "fleet" in record else self._pod(record["seat"])
        if subject is None:
            return None
        why = f": {record['reason']}" if record["reason"] else ""
        came = f" ({record['error']})" if record.get("error") else ""
        return Event(
            subject=subject,
            action="Order",
            reason=f"Order{outcome}",
            note=f"{record['operation']}, ordered by {record['by']}{why}{came}",
            warning=outcome in _NOT_DONE,
        )

    def _not_reloaded(self, record: Mapping[str, Any]) -> Event:
        faults = [f"{each['file']}:{each['line']}: {each['message']}" for each in record.get("faults", ())]
        more = len(faults) - _MOST_SAID + int(record.get("moreFaults", 0))
        said = faults[:_MOST_SAID] + ([f"and {more} more"] if more > 0 else [])
        return Event(
            subject=Subject.of(LEASE, self._namespace, self._lease),
            action="Reload",
            reason="PoliciesRefused",
            note=f"the last good policies stay in force: {record.get('problem') or '; '.join(said)}",
            warning=True,
        )
