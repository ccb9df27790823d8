"""Seats as their pods' labels and annotations tell of them, for whoever knows no agent. PURE.

The serving label says that a resident is in rotation, the template's list of residents at which port its guard is reached. What
agents know besides (whether an engine has died, how healthy a GPU is) is found out by whoever sends requests there.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from scaler.cluster.kube.views import Json, Pod, pod_from_json
from warmpool.seats import PolicyName, Resident, Seat
from warmpool.states import ResidentState

_OVER: Final = frozenset({"Failed", "Succeeded"})
"""Phases of a pod whose containers have ended for good."""
_LARGEST_PORT: Final = 65_535


def labelled_seat(body: Json) -> Seat:
    """Read a pod as a seat with those residents that its labels put in rotation, and with nothing that routes don't depend on.

    Whether the pod is Ready isn't asked: its readiness gate may be set a moment after its first label.
    """
    pod = pod_from_json(body)
    return Seat(
        name=pod.seat.name,
        uid=pod.seat.uid,
        version="",
        fleet=pod.seat.fleet,
        residents=tuple(_residents(pod)),
        serving=pod.seat.serving,
        terminating=pod.seat.terminating or pod.phase in _OVER,
    )


class SteadySeats:
    """Seats that stay the same objects for as long as nothing changes of them that routes depend on."""

    def __init__(self) -> None:
        self._known: dict[str, Seat] = {}

    def read(self, body: Json) -> Seat:
        """Read a pod, as `labelled_seat` does."""
        seat = labelled_seat(body)
        known = self._known.get(seat.uid)
        if known != seat:
            known = self._known[seat.uid] = seat
        return known

    def keep(self, seats: Iterable[Seat]) -> None:
        """Forget all but these."""
        self._known = {seat.uid: seat for seat in seats}


def _residents(pod: Pod) -> Iterable[Resident]:
    if not pod.ip:
        return
    ports, host = guard_ports(pod.residents), f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    for policy in sorted(pod.seat.serving & ports.keys()):
        address = f"http://{host}:{ports[policy]}"
        yield Resident(policy=policy, state=ResidentState.SERVING, since=0.0, address=address)


def without_port(seat: Seat) -> frozenset[PolicyName]:
    """Return the policies that a seat's labels put in rotation, and that can't be reached there: no port is named for them."""
    return seat.serving - {resident.policy for resident in seat.residents}


@lru_cache(maxsize=1024)
def guard_ports(residents: str) -> Mapping[PolicyName, int]:
    """Read the ports at which a seat's residents are reached from its template's list of them.

    Entries that can't be understood are left out: somebody wrote them, and the others are to be reached all the same.
    """
    try:
        listed = json.loads(residents)
    except (ValueError, RecursionError):
        return MappingProxyType({})
    entries = listed if isinstance(listed, list) else ()
    found = {PolicyName(each["policy"]): each["port"] for each in entries if _names_a_port(each)}
    return MappingProxyType(found)


def _names_a_port(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("policy"), str):
        return False
    port = entry.get("port")
    return isinstance(port, int) and not isinstance(port, bool) and 0 < port <= _LARGEST_PORT
