"""What a change of a field means for what happens: one row per field of the formats.

Keys are paths as in the file, with the kind before them and `[]` for an entry of a list. A row says what follows when the
value becomes more or less (for numbers; entries of a list: when one is added or removed), when it becomes a certain
value, or when it becomes another one at all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_NONE: Final[Mapping[object, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What follows from a change of one field.

    Attributes:
        more: when the number rises, or an entry is added.
        less: when it falls, or an entry is removed.
        to: when it becomes one of these values; None is a field that is no longer given.
        change: in every other case.
        unset: what a field that isn't given stands for, in words.
        unset_as: what it counts as in `more` and `less`; None when a given number is neither.
    """

    more: str = ""
    less: str = ""
    to: Mapping[object, str] = field(default_factory=lambda: _NONE)
    change: str = ""
    unset: str = "not set"
    unset_as: float | None = None

    def of(self, before: object, after: object) -> str:
        """Return what follows from this change."""
        if isinstance(after, str | bool | None) and after in self.to:
            return self.to[after]
        old, new = self._number(before), self._number(after)
        if old is None or new is None or old == new:
            return self.change
        return (self.more if new > old else self.less) or self.change

    def _number(self, value: object) -> float | None:
        if value is None:
            return self.unset_as
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def meaning_of(key: str) -> Meaning:
    """Return what a change of a field means.

    Args:
        key: kind and path, such as `ScalingPolicy.spec.fleets[].targetInFlight`.

    Raises:
        KeyError: there is no such field.
    """
    return _MEANINGS[key]


_METADATA: Final = {
    "metadata.name": Meaning(change="labels, metrics and pod names carry the new name"),
    "metadata.namespace": Meaning(change="its pods are looked for in another namespace"),
}

_WINDOW: Final = {
    "schedules[]": Meaning(
        more="a floor by the clock from now on", less="its floor by the clock holds no longer"
    ),
    "schedules[].timeZone": Meaning(change="the window opens and closes by another zone's clock"),
    "schedules[].start": Meaning(change="the window opens at other times"),
    "schedules[].end": Meaning(change="the window closes at other times"),
}

_FLEET: Final = {
    "spec.target.apiVersion": Meaning(change="another kind of workload holds the seats"),
    "spec.target.kind": Meaning(change="another kind of workload holds the seats"),
    "spec.target.name": Meaning(change="the pods of another workload are the seats"),
    "spec.mode": Meaning(
        to={
            "Enforce": "decisions are carried out from now on",
            "Observe": "decisions are still published and recorded, and nothing is written",
        }
    ),
    "spec.resizedBy": Meaning(
        to={
            "Emberpool": "the controller writes the number of replicas: no other scaler may",
            "Keda": (
                "the controller only publishes the total: a ScaledObject has to write it, and whoever raises the replicas"
                " beyond it raises the total for a while"
            ),
        }
    ),
    "spec.seat.gpus": Meaning(
        change="seats have to be made anew, and each counts differently in the GPU budget"
    ),
    "spec.seat.memoryMiB": Meaning(
        more="more residents of a seat may be paused, as far as its GPUs have that much",
        less="fewer residents of a seat may be paused",
        change="for who finds room on a seat",
        unset="all that its GPUs have",
    ),
    "spec.seat.kvWhenPaused": Meaning(
        to={
            "Release": "a paused resident gives its KV memory to its neighbours: a promotion has to take it first",
            "Keep": "a paused resident keeps its KV memory: promotions are faster, and neighbours have less",
        },
        unset="given back where residents share a seat, kept where one has it for itself",
    ),
    "spec.spare.mode": Meaning(
        to={
            "Fixed": "the spare target is spare.min",
            "Auto": "the spare target follows how fast demand has risen",
        }
    ),
    "spec.spare.min": Meaning(
        more="a larger burst is served at once, and more seats stand idle",
        less="fewer seats stand idle, and a smaller burst is served at once",
    ),
    "spec.spare.max": Meaning(
        more="mode Auto may keep more seats spare",
        less="mode Auto may keep fewer seats spare",
        unset="no limit but maxSeats",
        unset_as=math.inf,
    ),
    "spec.spare.quantile": Meaning(
        more="mode Auto keeps enough spares for rarer rises",
        less="mode Auto keeps fewer spares, and more rises outrun them",
    ),
    "spec.spare.lookbackSeconds": Meaning(
        more="mode Auto remembers rises for longer", less="mode Auto forgets rises sooner"
    ),
    "spec.spare.replenish.maxConcurrent": Meaning(
        more="spares grow faster: more seats may be starting at once",
        less="spares grow slower: fewer seats may be starting at once",
    ),
    "spec.spare.replenish.maxPerNode": Meaning(
        more="spares grow faster: more seats may be starting at once on one node",
        less="spares grow slower: fewer seats may be starting at once on one node",
        unset="no limit",
        unset_as=math.inf,
    ),
    "spec.spare.replenish.perMinute": Meaning(
        more="spares grow faster: more seats may be started in a minute",
        less="spares grow slower: fewer seats may be started in a minute",
    ),
    "spec.spare.parked.hostMemoryMiB": Meaning(
        more="more residents can wait in host memory, seconds from serving",
        less="fewer residents can wait in host memory; the others have no engine until there is room",
    ),
    "spec.maxSeats": Meaning(
        more="the fleet may grow further, and cost more", less="the fleet stops growing earlier"
    ),
    "spec.costPerGpuHour": Meaning(change="for the arithmetic of costs alone", unset="costs in GPU-hours"),
    "spec.costPerGpuHour.cents": Meaning(change="for the arithmetic of costs alone"),
    "spec.costPerGpuHour.currency": Meaning(change="for the arithmetic of costs alone"),
    "spec.scaleUp.policies[]": Meaning(
        more="one more limit on how fast seats are added; selectPolicy says which limit holds",
        less="one limit fewer on how fast seats are added",
    ),
    "spec.scaleUp.selectPolicy": Meaning(
        to={
            "Max": "the limit that allows the most holds",
            "Min": "the limit that allows the least holds",
            "Disabled": "no seat is added, but for floors",
        }
    ),
    "spec.scaleUp.tolerancePercent": Meaning(
        more="a larger rise of the total is ignored", less="a smaller rise of the total is acted on"
    ),
    "spec.scaleUp.stabilizationWindowSeconds": Meaning(
        more="seats are added later", less="seats are added sooner"
    ),
    "spec.scaleDown.policies[]": Meaning(
        more="one more limit on how fast seats are deleted; selectPolicy says which limit holds",
        less="one limit fewer on how fast seats are deleted",
    ),
    "spec.scaleDown.selectPolicy": Meaning(
        to={
            "Max": "the limit that allows the most holds",
            "Min": "the limit that allows the least holds",
            "Disabled": "no seat is deleted for want of demand",
        }
    ),
    "spec.scaleDown.tolerancePercent": Meaning(
        more="a larger fall of the total is ignored", less="a smaller fall of the total is acted on"
    ),
    "spec.scaleDown.stabilizationWindowSeconds": Meaning(
        more="seats that nobody needs are deleted later", less="seats that nobody needs are deleted sooner"
    ),
    "spec.selfHealing.initDurationSeconds": Meaning(
        more="slower starts of engines are borne", less="slow starts of engines count sooner as bad"
    ),
    "spec.selfHealing.consecutive": Meaning(
        more="a seat is replaced after more bad starts", less="a seat is replaced after fewer bad starts"
    ),
    "spec.selfHealing.action": Meaning(
        to={
            "ReplacePod": "a seat whose engines start badly is replaced",
            "None": "a seat whose engines start badly is only reported",
        }
    ),
    "spec.gpuHealth.mode": Meaning(
        to={
            "Enforce": "Suspect GPUs get no promotion, Bad ones are excluded",
            "Observe": "verdicts on GPUs are shown and not acted on",
        }
    ),
    "spec.gpuHealth.scope": Meaning(
        to={
            "Node": "the node of a Bad GPU gets no new pods",
            "Gpu": "a Bad GPU alone is excluded, and its node's other GPUs get new pods",
        }
    ),
    **{f"spec.{key}": row for key, row in _WINDOW.items()},
    "spec.schedules[].minSeats": Meaning(
        more="more seats while the window is open", less="fewer seats while the window is open"
    ),
    "spec.frozen": Meaning(
        to={None: "the fleet's size follows decisions again"},
        change="no seat is created or deleted until then",
        unset="not frozen",
    ),
    "spec.frozen.until": Meaning(change="the fleet's size stays as it is until another moment"),
    "spec.frozen.reason": Meaning(change="for whoever finds it"),
}

_GATEWAYS: Final = "as each gateway is set"

_POLICY: Final = {
    "spec.fleets": Meaning(
        change="its stable load belongs on the first fleet, and later ones are the bridge, in this order"
    ),
    "spec.fleets[]": Meaning(
        more="it may serve there too; its resident has to live on that fleet's seats",
        less="it no longer serves there: its residents on that fleet leave",
    ),
    "spec.fleets[].targetInFlight": Meaning(
        more="each resident there holds more requests: fewer residents for the same load",
        less="each resident there holds fewer requests: more residents for the same load",
    ),
    "spec.models[]": Meaning(
        more="the gateway routes requests for this name to it",
        less="requests for this name are no longer known here",
    ),
    "spec.engine.type": Meaning(change="residents have to be started with another engine"),
    "spec.engine.port": Meaning(
        change="residents are reached at another port: pods have to offer it",
        unset="as the residents' annotation says",
    ),
    "spec.engine.args": Meaning(change="holds for engines that are started from now on"),
    "spec.engine.pausedMiB": Meaning(change="for the arithmetic of memory", unset="measured by agents"),
    "spec.engine.kvMiB": Meaning(change="for the arithmetic of memory", unset="measured by agents"),
    "spec.engine.activationMiB": Meaning(
        change="for the arithmetic of memory, and for what a promotion may hold", unset="not looked at"
    ),
    "spec.engine.proof.source": Meaning(
        to={
            "Record": "residents that start from now on have to answer as was recorded",
            "Agreement": "residents that start from now on have to answer as others do",
        }
    ),
    "spec.engine.proof.prompts[]": Meaning(
        more="residents that start from now on are asked this as well",
        less="residents that start from now on aren't asked this any more",
    ),
    "spec.engine.proof.maxTokens": Meaning(
        more="residents that start from now on answer with more tokens",
        less="residents that start from now on answer with fewer tokens",
    ),
    "spec.engine.proof.tolerancePercent": Meaning(
        more="answers of residents that start from now on may differ more",
        less="answers of residents that start from now on may differ less",
        unset="tokens alone are compared",
    ),
    **{
        f"spec.engine.proof.ownership.{name}": Meaning(
            change="residents that start from now on have to run with it", unset="not compared"
        )
        for name in ("weightsDigest", "engineVersion", "dtype", "tensorParallelSize")
    },
    "spec.engine.warmup.promptTokens[]": Meaning(
        more="residents that start from now on compute a prompt of this length before they are proven",
        less="residents that start from now on compute no prompt of this length before they are proven",
    ),
    "spec.engine.warmup.batchSizes[]": Meaning(
        more="residents that start from now on compute so many requests at once before they are proven",
        less="residents that start from now on don't compute so many requests at once before they are proven",
    ),
    "spec.engine.warmup.maxTokens": Meaning(
        more="residents that start from now on answer warm-up with more tokens",
        less="residents that start from now on answer warm-up with fewer tokens",
        unset="as the agent is set",
    ),
    "spec.engine.graphCapture": Meaning(
        to={
            "AtStart": "residents that start from now on capture their graphs before they are ready",
            "WhilePaused": "residents that start from now on are promotable before they capture their graphs",
        }
    ),
    "spec.engine.startSeconds": Meaning(change="for the arithmetic of times", unset="not known yet"),
    "spec.priority": Meaning(
        more="it goes before more of the others where seats are short",
        less="more of the others go before it where seats are short",
    ),
    "spec.preemptible": Meaning(
        to={
            True: "beyond serving.min it only borrows spare seats, until somebody wants them",
            False: "the seats that it serves on are its own",
        }
    ),
    "spec.onReclaim": Meaning(
        to={
            "Abort": "requests on a borrowed seat that is wanted back are ended at once",
            "Wait": "requests on a borrowed seat that is wanted back have until the drain's deadline",
        }
    ),
    "spec.objectives.ttft.seconds": Meaning(
        more="a queue may wait longer before its age begins a burst: promotes later",
        less="a queue's age begins a burst sooner: promotes sooner",
    ),
    "spec.objectives.ttft.percent": Meaning(
        more="the objective holds for more requests", less="the objective holds for fewer requests"
    ),
    "spec.serving.min": Meaning(
        more="more residents always serve", less="fewer residents serve when there is little to do"
    ),
    "spec.serving.max": Meaning(
        more="more residents may serve at once",
        less="fewer residents may serve at once: what exceeds them waits",
        unset="no limit but the fleets' seats",
        unset_as=math.inf,
    ),
    "spec.serving.queueDrainSeconds": Meaning(
        more="a queue may take longer to be admitted: promotes fewer at once",
        less="a queue has to be admitted faster: promotes more at once",
    ),
    "spec.burst.thresholdPercent": Meaning(
        more="takes a larger rise of demand to begin a burst: promotes later",
        less="takes a smaller rise of demand to begin a burst: promotes sooner",
    ),
    "spec.burst.windowSeconds": Meaning(
        more="a peak counts for longer in a burst", less="a peak is forgotten sooner in a burst"
    ),
    "spec.burst.stableWindowSeconds": Meaning(
        more="the mean follows demand more slowly, and a burst and its bridge last longer",
        less="the mean follows demand faster, and a burst and its bridge end sooner",
    ),
    "spec.burst.demoteAfterSeconds": Meaning(
        more="residents that nobody needs are paused later, and keep their seats for longer",
        less="residents that nobody needs are paused sooner, and give back their seats",
    ),
    "spec.queue.maxRequests": Meaning(
        more="more requests may wait at each gateway before others are refused",
        less="fewer requests may wait at each gateway: others are refused sooner",
        change="another number of requests may wait at each gateway",
        unset=_GATEWAYS,
    ),
    "spec.queue.maxMiB": Meaning(
        more="the bodies of what waits may take more memory of each gateway",
        less="the bodies of what waits may take less memory of each gateway: others are refused sooner",
        change="the bodies of what waits may take another size at each gateway",
        unset=_GATEWAYS,
    ),
    "spec.queue.maxAgeSeconds": Meaning(
        more="a request may wait longer for its first slot before it is refused",
        less="a request that finds no slot is refused sooner",
        change="a request is refused after another wait",
        unset=_GATEWAYS,
    ),
    "spec.queue.maxColdSeconds": Meaning(
        more="a request that finds no resident serving may wait longer for one",
        less="a request that finds no resident serving is refused sooner",
        change="a request that finds no resident serving is refused after another wait",
        unset=_GATEWAYS,
    ),
    "spec.signals[]": Meaning(
        more="its load is read from there too", less="its load is no longer read from there"
    ),
    "spec.signals[].type": Meaning(change="its load is read in another way"),
    "spec.signals[].intervalMilliseconds": Meaning(
        more="load is read less often: a burst is seen later",
        less="load is read more often: a burst is seen sooner",
    ),
    "spec.signals[].intervalSeconds": Meaning(
        more="load is read less often: a burst is seen later",
        less="load is read more often: a burst is seen sooner",
    ),
    "spec.signals[].timeoutMilliseconds": Meaning(
        more="a slow answer is waited for longer", less="a slow answer is given up sooner"
    ),
    "spec.signals[].timeoutSeconds": Meaning(
        more="a slow answer is waited for longer", less="a slow answer is given up sooner"
    ),
    "spec.signals[].server": Meaning(change="another server is asked", unset="the controller's --prometheus"),
    "spec.signals[].query": Meaning(change="another question is asked"),
    "spec.signals[].measures": Meaning(change="the answer is taken for something else"),
    "spec.signals[].authorization.basic": Meaning(
        to={None: "it is asked without a password"}, change="it is asked with a password", unset="none"
    ),
    "spec.signals[].authorization.basic.username": Meaning(change="it is asked as another user"),
    "spec.signals[].authorization.basic.passwordFile": Meaning(change="the password comes from another file"),
    "spec.signals[].authorization.bearerTokenFile": Meaning(
        to={None: "it is asked without a token"}, change="the token comes from that file", unset="none"
    ),
    "spec.signals[].tls.caFile": Meaning(
        change="other certificates are trusted", unset="the system's certificates"
    ),
    "spec.signals[].tls.skipVerify": Meaning(
        to={
            True: "any certificate is taken: whoever is on the way can answer",
            False: "certificates are checked",
        }
    ),
    "spec.signals[].key": Meaning(change="another queue is read"),
    "spec.signals[].group": Meaning(change="the work of another consumer group is read"),
    "spec.signals[].server.mode": Meaning(change="Redis is reached in another way"),
    "spec.signals[].server.addresses": Meaning(
        change="another Redis is asked", unset="the controller's --redis"
    ),
    "spec.signals[].server.sentinelMaster": Meaning(change="the sentinels are asked for another master"),
    "spec.signals[].server.database": Meaning(change="another database is read"),
    "spec.signals[].server.username": Meaning(
        change="Redis is asked as another user", unset="Redis' default user"
    ),
    "spec.signals[].server.passwordFile": Meaning(
        change="the password comes from another file", unset="no password"
    ),
    "spec.signals[].server.tls": Meaning(
        to={None: "the connection is no longer encrypted"}, change="the connection is encrypted", unset="none"
    ),
    "spec.signals[].server.tls.caFile": Meaning(
        change="other certificates are trusted", unset="the system's certificates"
    ),
    "spec.signals[].server.tls.skipVerify": Meaning(
        to={
            True: "any certificate is taken: whoever is on the way can answer",
            False: "certificates are checked",
        }
    ),
    **{f"spec.{key}": row for key, row in _WINDOW.items()},
    "spec.schedules[].minServing": Meaning(
        more="more residents serve while the window is open",
        less="fewer residents serve while the window is open",
    ),
    "spec.fallback.failureThreshold": Meaning(
        more="signals may be silent for longer before the fallback holds",
        less="the fallback holds sooner when signals fall silent",
    ),
    "spec.fallback.behavior": Meaning(
        to={
            "Static": "without signals exactly fallback.replicas serve, which may be fewer than before",
            "CurrentReplicas": "without signals what serves goes on serving",
            "CurrentReplicasIfHigher": "without signals what serves goes on serving, and fallback.replicas at least",
            "CurrentReplicasIfLower": "without signals fallback.replicas serve at most",
        }
    ),
    "spec.fallback.replicas": Meaning(
        more="the fallback speaks of more residents", less="the fallback speaks of fewer residents"
    ),
}

_CONTROLLER: Final = {
    "spec.gpuBudget": Meaning(
        more="all fleets together may have more GPUs",
        less="all fleets together may have fewer GPUs: spares go first, floors last",
        unset="no limit but the fleets' maxSeats",
        unset_as=math.inf,
    ),
    "spec.breaker.maxPercent": Meaning(
        more="more GPU nodes may be excluded at once", less="fewer GPU nodes may be excluded at once"
    ),
    "spec.breaker.atLeast": Meaning(
        more="more GPU nodes may be excluded at once", less="fewer GPU nodes may be excluded at once"
    ),
    "spec.breaker.atMost": Meaning(
        more="more GPU nodes may be excluded at once",
        less="fewer GPU nodes may be excluded at once",
        unset="no limit but the share",
        unset_as=math.inf,
    ),
    "spec.breaker.windowSeconds": Meaning(
        more="GPU nodes are excluded more slowly", less="GPU nodes are excluded faster"
    ),
    "spec.heeds.taints[]": Meaning(
        more="seats on nodes with this taint are handed over, and nobody is promoted there",
        less="this taint says nothing of a node's seats any more",
    ),
    "spec.heeds.conditions[]": Meaning(
        more="seats on nodes of which this is said are handed over, and nobody is promoted there",
        less="this condition says nothing of a node's seats any more",
    ),
}

_XID_TABLE: Final = {
    "spec.rules[]": Meaning(
        more="this code says something of its GPU from now on", less="this code falls under `unlisted`"
    ),
    "spec.rules[].verdict": Meaning(
        to={
            "Record": "the error is counted and shown, and nothing more",
            "Suspect": "a GPU with the error gets no promotion",
            "Bad": "a GPU with the error is excluded, and its seat replaced",
        }
    ),
    "spec.rules[].when": Meaning(change="the rule holds in other cases"),
    "spec.rules[].occurrences": Meaning(more="takes more errors", less="takes fewer errors"),
    "spec.rules[].withinSeconds": Meaning(
        more="errors count together over a longer time", less="errors count together over a shorter time"
    ),
    "spec.rules[].note": Meaning(change="for whoever reads the verdict"),
    "spec.unlisted": Meaning(
        to={
            "Record": "an error that no rule is about changes nothing",
            "Suspect": "a GPU with an error that no rule is about gets no promotion",
        }
    ),
}

_MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        f"{kind}.{path}": row
        for kind, rows in (
            ("Fleet", _FLEET),
            ("ScalingPolicy", _POLICY),
            ("Controller", _CONTROLLER),
            ("XidTable", _XID_TABLE),
        )
        for path, row in {**_METADATA, **rows}.items()
    }
)

KEYS: Final = frozenset(_MEANINGS)
"""All fields that have a row."""
