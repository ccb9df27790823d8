"""What must be so at every moment, whatever fails: looked at with each write to a pod and each step of an engine."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.control_plane import pods as reading
from tests.fakes.kube_api.kinds import BY_PATH, POD
from tests.fakes.kube_api.store import Change
from tests.fakes.memory_cluster import S
from tests.sim.fault_schedules.machines import NAMESPACE_NAME, PRIORITIES, Machines, SeatAgents
from warmpool.seats import CLAIM_ANNOTATION, SERVING_LABEL_PREFIX, PolicyName, SeatName

Body = Mapping[str, Any]
_OVERTAKES = {("Recall", "Demote"), ("Switch", "Demote"), ("Promote", "Unpark"), ("Promote", "Park")}
_PROMOTIONS = frozenset({"Promote", "Switch", "Recall"})
_KNOWN_SECONDS = 3.0
"""A write may be on its way for so long, and what its writer learned meanwhile comes too late for it."""
_LEASE = BY_PATH["coordination.k8s.io", "v1", "leases"]


def claim_of(pod: Body | None) -> Body | None:
    """Return a pod's claim; None if it has none."""
    text = ((pod or {}).get("metadata") or {}).get("annotations", {}).get(CLAIM_ANNOTATION)
    return json.loads(text) if text else None


def serving(pod: Body | None) -> frozenset[PolicyName]:
    """Return the policies whose serving labels a pod has."""
    labels = ((pod or {}).get("metadata") or {}).get("labels") or {}
    found = (key.removeprefix(SERVING_LABEL_PREFIX) for key in labels if key.startswith(SERVING_LABEL_PREFIX))
    return frozenset(map(PolicyName, found))


def reached(pods: Sequence[Body], policy: PolicyName) -> list[str]:
    """Return the pods that a model's Service sends requests to: those that are ready, else those that end and still serve."""
    found = [pod for pod in pods if policy in serving(pod) and reading.is_ready(pod)]
    ready = [pod for pod in found if not reading.is_terminating(pod)]
    return [pod["metadata"]["name"] for pod in ready or found]


@dataclass(kw_only=True)
class Invariants:
    """Looks on.

    Attributes:
        machines: at what.
        skew: returns by how much the clock of a controller may be wrong now, in seconds.
        broken: what was not as it must be, and when.
        told: what happened, for people who look for the cause.
    """

    machines: Machines
    skew: Callable[[], float] = lambda: 0.0
    broken: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    _died: dict[tuple[SeatName, PolicyName], float] = field(default_factory=dict)
    _epoch: int = 0

    def begin(self) -> None:
        api = self.machines.api
        api.store.listen(POD, self._wrote)
        api.store.listen(_LEASE, self._led)
        self._agents.objects.subscribe(self._stepped)

    @property
    def _agents(self) -> SeatAgents:
        return self.machines.agents

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def tell(self, what: str) -> None:
        self.told.append(f"{self.now:8.3f} {what}")

    def _break(self, what: str) -> None:
        self.tell(f"BROKEN: {what}")
        self.broken.append(f"{self.now:.3f}: {what}")

    # ------------------------------------------------------------ terms

    def _led(self, change: Change) -> None:
        spec = change.new.body["spec"]
        epoch, holder = int(spec.get("leaseTransitions") or 0), spec.get("holderIdentity")
        before = (change.old.body["spec"].get("holderIdentity"), self._epoch) if change.old else ("", 0)
        if (holder, epoch) != before:
            self.tell(f"lease: {holder or 'nobody'} in term {epoch}")
        if holder and change.old and holder != before[0] and epoch <= self._epoch:
            self._break(f"{holder} leads in term {epoch}, and there was term {self._epoch}")
        self._epoch = max(self._epoch, epoch)

    # ------------------------------------------------------------ engines

    def _stepped(self) -> None:
        for seat in self._agents.objects.all():
            computing = [each.policy for each in seat.residents if each.state is S.SERVING]
            if len(computing) > 1:
                self._break(f"{seat.name}: {computing} serve at once")
            for each in seat.residents:
                if each.state is S.FAILED:
                    self._died.setdefault((seat.name, each.policy), self.now)
                elif each.state is S.PAUSED:
                    self._died.pop((seat.name, each.policy), None)

    def _state(self, name: str, policy: PolicyName) -> S | None:
        seat = next((seat for seat in self._agents.objects.all() if seat.name == name), None)
        resident = None if seat is None else seat.resident(policy)
        return None if resident is None else resident.state

    def _healthy(self, pod: Body, policy: PolicyName) -> bool:
        """Whether a pod's resident answers: its engine serves, its GPU is fit, and nobody takes it away."""
        name = pod["metadata"]["name"]
        if reading.is_terminating(pod) or name in self._agents.words:
            return False
        return self._state(name, policy) is S.SERVING

    def _seems_healthy(self, pod: Body, policy: PolicyName, holder: str) -> bool:
        """Whether it answers, and whoever writes can't know yet that its GPU is unfit."""
        name = pod["metadata"]["name"]
        known = self.now - self._unfit_since(name, holder) > _KNOWN_SECONDS
        return not known and not reading.is_terminating(pod) and self._state(name, policy) is S.SERVING

    # ------------------------------------------------------------ pods

    def _wrote(self, change: Change) -> None:
        if change.deleted or change.new.body["metadata"].get("namespace") != NAMESPACE_NAME:
            return
        old, new = None if change.old is None else change.old.body, change.new.body
        name = new["metadata"]["name"]
        before, after = claim_of(old), claim_of(new)
        if (before or {}).get("id") != (after or {}).get("id"):
            self._claimed(name, before, after)
        added, removed = serving(new) - serving(old), serving(old) - serving(new)
        for policy in added:
            self._into_rotation(name, policy, before)
        for policy in removed:
            self._out_of_rotation(name, policy, new)
        if len(serving(new)) > 1:
            self._break(f"{name}: {sorted(serving(new))} are in rotation at once")
        if old is not None and reading.is_terminating(new) and not reading.is_terminating(old):
            self.tell(f"{name} is being removed, serving {sorted(serving(new))}")
        if old is not None and reading.is_ready(old) and not reading.is_ready(new):
            self._break(f"{name} is no longer Ready")

    def _claimed(self, name: str, before: Body | None, after: Body | None) -> None:
        if after is None:
            self.tell(f"{name}: claim {before and before['id']} ends")
            return
        self.tell(
            f"{name}: claim {after['id']} {after['operation']} {after['policy']}, after {before and before['id']}"
        )
        if before is not None:
            pair = after["operation"], before["operation"]
            overtakes = pair in _OVERTAKES and (after.get("leaving") or after["policy"]) == before["policy"]
            late = self.machines.wall() + self.skew() >= before["deadline"]
            if not (late or overtakes or after["epoch"] > before["epoch"]):
                self._break(f"{name}: claimed for {after} while it was for {before}")
        since = self._unfit_since(name, after["holder"])
        unfit = SeatName(name) in self._agents.words and self.now - since > _KNOWN_SECONDS
        if after["operation"] in _PROMOTIONS and unfit:
            self._break(
                f"{name}: claimed for {after['operation']} on a GPU that it knows to be unfit since {since:.3f}"
            )

    def _unfit_since(self, name: str, holder: str) -> float:
        """Since when a claim's holder knows that a seat's GPU is unfit; now if it doesn't."""
        return self._agents.unfit.get((SeatName(name), holder.partition("-")[0]), self.now)

    def _into_rotation(self, name: str, policy: PolicyName, claim: Body | None) -> None:
        self.tell(f"{name}: {policy} into rotation")
        state, died = self._state(name, policy), self._died.get((SeatName(name), policy))
        if claim is None:
            self._break(f"{name}: {policy} is in rotation without a claim")
        if state is S.SERVING or (died is not None and self.now - died < _KNOWN_SECONDS):
            return
        self._break(f"{name}: {policy} is in rotation, and its engine is {state}")

    def _out_of_rotation(self, name: str, policy: PolicyName, pod: Body) -> None:
        self.tell(f"{name}: {policy} out of rotation")
        holder = (claim_of(pod) or {}).get("holder", "")
        others = [
            each
            for each in self.machines.pods()
            if each["metadata"]["name"] != name
            and policy in serving(each)
            and (self._healthy(each, policy) or self._seems_healthy(each, policy, holder))
        ]  # one that has just been let in is Ready as soon as its node has noticed
        if others or self._yields(policy, claim_of(pod)):
            return
        if self._healthy(pod, policy) and reading.is_ready(pod):
            self._break(f"{name}: the last endpoint of {policy} is taken out of rotation, and it is healthy")

    def _yields(self, policy: PolicyName, claim: Body | None) -> bool:
        """Whether the seat goes to a policy of higher priority that is served by nobody: its floor comes first where one seat is left."""
        taker = (claim or {}).get("policy")
        if taker is None or claim["operation"] != "Switch" or taker == policy:
            return False
        served = any(taker in serving(each) and self._healthy(each, taker) for each in self.machines.pods())
        return not served and PRIORITIES[taker] > PRIORITIES[policy]

    # ------------------------------------------------------------ the end

    def unsettled(self, wanted: Mapping[PolicyName, int], spares: int) -> str:
        """Say what isn't yet as it should be once nothing fails any more; empty if all is."""
        pods = self.machines.pods()
        for pod in pods:
            if why := self._lifeless(pod) or self._at_odds(pod):
                return why
        for policy, least in wanted.items():
            if len(reached(pods, policy)) < least:
                return f"{policy} is served by {reached(pods, policy)}, and needs {least}"
        if (free := sum(not serving(pod) for pod in pods)) < spares:
            return f"{free} seats are spare, and {spares} should be"
        return ""

    def _lifeless(self, pod: Body) -> str:
        """Say why a seat isn't one that can be reckoned with; empty if it is."""
        name = pod["metadata"]["name"]
        if reading.is_terminating(pod):
            return f"{name} is being removed"
        if claim_of(pod):
            return f"{name} is claimed: {claim_of(pod)}"
        if not reading.is_ready(pod):
            return f"{name} isn't Ready"
        lost = [
            each for each in self.machines.policies if self._state(name, each) not in {S.PAUSED, S.SERVING}
        ]
        return f"{name}: {lost[0]} is {self._state(name, lost[0])}" if lost and not serving(pod) else ""

    def _at_odds(self, pod: Body) -> str:
        """Say where labels and engines contradict each other; empty if they don't."""
        name, in_rotation = pod["metadata"]["name"], serving(pod)
        worth = pod["metadata"]["labels"].get("emberpool.dev/seat")
        if worth != ("Serving" if in_rotation else "Spare"):
            return f"{name} is marked {worth}, and serves {sorted(in_rotation)}"
        for policy in self.machines.policies:
            if (policy in in_rotation) != (self._state(name, policy) is S.SERVING):
                return f"{name}: {policy} is {self._state(name, policy)}, and serves {sorted(in_rotation)}"
        return ""

    def too_many(self, wanted: Mapping[PolicyName, int], spares: int) -> str:
        """Say what there is more of than is needed; empty if there is nothing."""
        pods = self.machines.pods()
        for policy, least in wanted.items():
            if len(reached(pods, policy)) > least:
                return f"{policy} is served by {reached(pods, policy)}, and needs {least}"
        most = sum(wanted.values()) + spares
        return f"there are {len(pods)} seats, and {most} would do" if len(pods) > most else ""

    def unserved(self, wanted: Mapping[PolicyName, int]) -> str:
        """Say which policy has fewer endpoints than it needs; empty if none has."""
        pods = self.machines.pods()
        for policy, least in wanted.items():
            healthy = [name for name in reached(pods, policy) if self._state(name, policy) is S.SERVING]
            if len(healthy) < least:
                return f"{policy} is served by {healthy}, and needs {least}"
        return ""

    async def until(self, lacking: Callable[[], str], seconds: float) -> float:
        """Wait until nothing is lacking, and return how long that took; infinite if it takes too long, which is told."""
        began = self.now
        while why := lacking():
            if self.now - began > seconds:
                self._break(f"after {seconds:g} s: {why}")
                return math.inf
            await asyncio.sleep(0.05)
        return self.now - began
