"""A first policy file for somebody who knows HorizontalPodAutoscaler: the YAML with its explanations.

What is written is what was decided for; everything else keeps its default and is not mentioned.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scaler.policy.base import API_VERSION
from scaler.policy.compile import PolicySet
from scaler.policy.facts import as_yaml
from scaler.policy.fleet import ResizedBy
from scaler.policy.scaling_policy import EngineType
from scaler.policy.schema import FILE_NAME
from scaler.policy.wording import did_you_mean

SIGNAL_FORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Pushed": "Pushed",
        "EngineMetrics": "EngineMetrics",
        "Prometheus": "Prometheus=MEASURES=QUERY",
        "RedisList": "RedisList=KEY",
        "RedisStream": "RedisStream=KEY/GROUP",
        "RedisSortedSet": "RedisSortedSet=KEY",
    }
)
"""How each type of signal is said in one word."""
_DETAIL_KEYS: Final = re.compile("[A-Z]+")
_SIGNAL_NAMES: Final = {"Pushed": "gateway", "EngineMetrics": "engine", "Prometheus": "prometheus"}
"""What signals are called; the others are queues."""
MODELINE: Final = f"# yaml-language-server: $schema=schema/{FILE_NAME}"
"""First line of each document; the path is relative to the file."""
FIRST_PORT: Final = 8001
"""Port of the first resident of a seat; its neighbours get the next ones."""
_WIDTH: Final = 100
_LONGEST_NAME: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFleet:
    """A fleet to be written.

    Attributes:
        name: its name.
        policies: names of the policies that serve on it.
        bridge: it stands behind the policies' own fleets.
        gpus: GPUs of one seat.
        max_seats: seats that it may have at most.
        spare: spare seats that it should have.
        resized_by: who writes the number of replicas.
        lends: work that can wait borrows its spare seats, so that there have to be more than are kept for bursts.
    """

    name: str
    policies: tuple[str, ...]
    bridge: bool
    gpus: int
    max_seats: int
    spare: int
    resized_by: ResizedBy
    lends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSignal:
    """A signal to be written.

    Attributes:
        type: its type.
        values: what it needs beside a name, by the keys of the file.
    """

    type: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPolicy:
    """A policy to be written.

    Attributes:
        name: its name.
        model: the model's name in requests.
        fleets: fleets that it serves on, its own first.
        engine: the engine that serves it.
        port: port of its residents; None where the engine has none to choose.
        target_in_flight: requests in flight that one resident holds.
        ttft_milliseconds: time to first token.
        serving_min: residents that always serve.
        serving_max: residents that serve at most; None for as many as there are seats.
        priority: who goes first when seats are short; None where nobody said.
        preemptible: it is work that can wait.
        signals: where its load is read; none for the default.
    """

    name: str
    model: str
    fleets: tuple[str, ...]
    engine: EngineType
    port: int | None
    target_in_flight: int
    ttft_milliseconds: int
    serving_min: int
    serving_max: int | None = None
    priority: int | None = None
    preemptible: bool = False
    signals: tuple["NewSignal", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSet:
    """What goes into the file.

    Attributes:
        namespace: Kubernetes namespace of everything.
        fleets: the fleets.
        policies: the policies.
    """

    namespace: str
    fleets: tuple[NewFleet, ...]
    policies: tuple[NewPolicy, ...]


def policy_name(model: str) -> str:
    """Make a policy's name of a model's name: its last part, with what a name can't hold as `-`."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:_LONGEST_NAME].rstrip("-")


def signal_of(text: str) -> NewSignal:
    """Read `TYPE`, or `TYPE=DETAIL` where a type needs one.

    Raises:
        ValueError: there is no such type, or it lacks what it needs, or has what it can't use.
    """
    kind, equals, detail = text.partition("=")
    if kind not in SIGNAL_FORMS:
        guess = did_you_mean(kind, SIGNAL_FORMS)
        raise ValueError(f"there is no type {kind}: {guess or 'there are ' + ', '.join(SIGNAL_FORMS)}")
    form = SIGNAL_FORMS[kind]
    keys = [key.lower() for key in _DETAIL_KEYS.findall(form.partition("=")[2])]
    if kind == "RedisStream":
        first, _, second = detail.rpartition("/")
    else:
        first, _, second = detail.partition("=") if len(keys) > 1 else (detail, "", "")
    values = dict(zip(keys, (first, second), strict=False))
    if bool(equals) != bool(keys) or not all(values.values()):
        raise ValueError(f"must be {form}")
    return NewSignal(type=kind, values=values)


def free_ports(policies: PolicySet | None, fleets: Iterable[str], count: int) -> list[int]:
    """Return ports that no resident on these fleets has yet.

    Args:
        policies: what there is already.
        fleets: the fleets on which the residents will live.
        count: how many ports.
    """
    names = set(fleets)
    taken = {
        policy.spec.engine.port
        for policy in (() if policies is None else policies.policies.values())
        if names & {share.name for share in policy.spec.fleets}
    }
    ports: list[int] = []
    candidate = FIRST_PORT
    while len(ports) < count:
        if candidate not in taken:
            ports.append(candidate)
        candidate += 1
    return ports


def written(new: NewSet) -> str:
    """Write the file."""
    page = _Page(new.namespace)
    documents = [page.fleet(fleet) for fleet in new.fleets] + [page.policy(policy) for policy in new.policies]
    return "\n---\n".join("\n".join([MODELINE, *document]) for document in documents) + "\n"


class _Page:
    """Writes documents, and explains each thing where it stands first.

    Args:
        namespace: Kubernetes namespace of everything.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._said: set[str] = set()

    def fleet(self, fleet: NewFleet) -> list[str]:
        """Write a fleet."""
        shared = fleet.bridge or len(fleet.policies) > 1
        lines = [
            *self._why(0, _ABOUT_FLEETS, _role(fleet)),
            *self._head("Fleet", fleet.name),
            *self._why(2, _MAX_SEATS_OF_BRIDGE if fleet.bridge else _MAX_SEATS),
            f"  maxSeats: {fleet.max_seats}",
            "  seat:",
            *self._why(4, _GPUS),
            f"    gpus: {fleet.gpus}",
            *self._why(4, _RELEASE if shared else _KEEP),
            f"    kvWhenPaused: {'Release' if shared else 'Keep'}",
        ]
        if fleet.gpus:
            lines += [*self._why(4, _MEMORY), "    # memoryMiB: 144384"]
        if fleet.spare or fleet.lends:
            mode = [*self._why(4, _LENDS), "    mode: Auto"] if fleet.lends else []
            lines += [
                "  spare:",
                *mode,
                *self._why(4, _SPARE_OF_SEVERAL if shared else _SPARE),
                f"    min: {fleet.spare}",
            ]
        return [*lines, *self._why(2, _RESIZED), f"  resizedBy: {fleet.resized_by}"]

    def policy(self, policy: NewPolicy) -> list[str]:
        """Write a policy."""
        lines = [
            *self._why(0, _ABOUT_POLICIES),
            *self._head("ScalingPolicy", policy.name),
            *self._why(2, _FLEETS if len(policy.fleets) == 1 else _FLEETS_IN_ORDER, _TARGET),
            "  fleets:",
        ]
        for fleet in policy.fleets:
            lines += [f"    - name: {as_yaml(fleet)}", f"      targetInFlight: {policy.target_in_flight}"]
        lines += [
            *self._why(2, _MODELS),
            "  models:",
            f"    - {as_yaml(policy.model)}",
            "  engine:",
            f"    type: {policy.engine}",
        ]
        if policy.port is not None:
            lines += [*self._why(4, _PORT), f"    port: {policy.port}"]
        lines += [
            *self._why(4, _SIZES),
            "    # pausedMiB: 16800",
            "    # kvMiB: 40960",
            "    # activationMiB: 2048",
            "    # startSeconds: 60",
        ]
        if policy.priority is not None:
            lines += [*self._why(2, _PRIORITY), f"  priority: {policy.priority}"]
        if policy.preemptible:
            lines += [*self._why(2, _PREEMPTIBLE), "  preemptible: true"]
        lines += [
            "  objectives:",
            *self._why(4, _TTFT),
            "    ttft:",
            f"      {_ttft(policy.ttft_milliseconds)}",
            "  serving:",
            *self._why(4, _SERVING_MIN),
            f"    min: {policy.serving_min}",
        ]
        if policy.serving_max is not None:
            lines.append(f"    max: {policy.serving_max}")
        if policy.preemptible:
            lines += [*self._why(4, _PATIENT), f"    queueDrainSeconds: {_PATIENT_DRAIN_SECONDS}"]
        if policy.signals:
            lines += [*self._why(2, _SIGNALS), "  signals:", *_signals(policy.signals)]
        return lines

    def _head(self, kind: str, name: str) -> list[str]:
        return [
            f"apiVersion: {API_VERSION}",
            f"kind: {kind}",
            "metadata:",
            f"  name: {as_yaml(name)}",
            f"  namespace: {as_yaml(self._namespace)}",
            "spec:",
        ]

    def _why(self, indent: int, *texts: str) -> list[str]:
        """Explain what the file hasn't explained yet."""
        paragraphs = [part for text in texts if text not in self._said for part in text.strip().split("\n\n")]
        self._said.update(texts)
        start = " " * indent + "# "
        lines: list[str] = []
        for paragraph in paragraphs:
            lines += [start.rstrip()] if lines else []
            lines += textwrap.wrap(
                paragraph, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
            )
        return lines


def _role(fleet: NewFleet) -> str:
    if fleet.bridge:
        return (
            f"The spare seats behind {_listed(fleet.policies)}. Each of these models is resident on every seat, and any "
            "seat serves whichever of them bursts first: the bridge until the model's own fleet has grown."
        )
    if len(fleet.policies) == 1:
        return f"The seats of {fleet.policies[0]}."
    return (
        f"The seats that {_listed(fleet.policies)} share. Every model is resident on every seat, and one of them serves "
        "there at a time."
    )


def _signals(signals: Sequence[NewSignal]) -> Iterator[str]:
    names = Counter[str]()
    for signal in signals:
        name = _SIGNAL_NAMES.get(signal.type, "queue")
        names[name] += 1
        unique = name if names[name] == 1 else f"{name}-{names[name]}"
        yield f"    - {as_yaml({'name': unique, 'type': signal.type, **signal.values})}"


def _ttft(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"milliseconds: {milliseconds}" if rest else f"seconds: {seconds}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ------------------------------------------------------------------ explanations

_ABOUT_FLEETS: Final = """\
A Fleet is what there is: the pods of one workload (a Deployment of the fleet's name, unless spec.target says another).
A pod is a seat: some GPUs on which one or several models are resident, that is loaded, warmed up and proven. A resident
either serves or is paused; a paused one holds its weights in GPU memory, gets no request, and can be put into rotation
within milliseconds.

For those who know HorizontalPodAutoscaler: the fleet's total is the workload's replicas, and it follows from what the
policies need plus the spare seats. A burst doesn't wait for it: it is served by promoting paused residents on seats that
are there already, while new pods start behind them.
"""

_ABOUT_POLICIES: Final = """\
A ScalingPolicy is what one model needs: where it may serve, what one resident can hold, and what its users may expect. In
an HPA's words it is the metric with its target, minReplicas and behavior, but counted in residents instead of pods.
"""

_MAX_SEATS: Final = """\
The most seats that there may be, as an HPA's maxReplicas. There is no default, because it is what the fleet may cost.
"""

_MAX_SEATS_OF_BRIDGE: Final = """\
The most seats that there may be, as an HPA's maxReplicas. While spare seats serve a burst, new ones are started to be spare
in their place: hence room for twice as many as shall be spare.
"""

_GPUS: Final = "GPUs of one seat; every resident of the seat uses all of them. 0: engines that run on CPU."

_KEEP: Final = """\
A paused resident keeps its KV memory: nobody shares the seat, and a promotion needn't take it anew.
"""

_RELEASE: Final = """\
A paused resident gives back its KV memory, so that whichever neighbour serves has it. All residents' weights have to fit
beside the KV memory of one: `emberpool policy lint` reckons it.
"""

_MEMORY: Final = """\
Memory of all GPUs of one seat together, for `emberpool policy lint`: what `nvidia-smi --query-gpu=memory.total
--format=csv,noheader,nounits` says of them, added up. Take the # away and write yours.
"""

_SPARE: Final = """\
Seats that stand ready with their resident paused: how many seats' worth of burst is served at once, before any new pod has
started. Each costs a pod's GPUs.
"""

_SPARE_OF_SEVERAL: Final = """\
Seats that stand ready with all residents paused: how many seats' worth of burst is served at once, of whichever model,
before any new pod has started. Each costs a pod's GPUs, once for all models.
"""

_LENDS: Final = """\
How many seats shall be spare: as many as demand has risen by while a new one started, learned over days. What exceeds min
is lent to work that can wait. With mode Fixed it is min, and nothing is lent.
"""

_RESIZED: Final = """\
Who writes the workload's replicas; there must be exactly one. Emberpool: the controller does, so no HPA or ScaledObject may
have the same target. Keda: a ScaledObject does, with the total that the controller publishes; whoever raises the replicas
beyond that, a person or another trigger, raises the total for a while.
"""

_FLEETS: Final = "Where it may serve."

_FLEETS_IN_ORDER: Final = """\
Where it may serve, in order: its steady load belongs on the first fleet, and what that can't carry yet is served by the
next.
"""

_TARGET: Final = """\
targetInFlight: requests in flight that one resident holds there, as an HPA's averageValue. Measure it: the highest
concurrency at which the engine still keeps the objective below. The gateway sends a resident no more than that, and what
exceeds it waits there and counts as demand.
"""

_MODELS: Final = "Model names in requests that belong to this policy."

_PORT: Final = "Where a resident is reached on its pod. Residents that share a seat need a port each."

_SIZES: Final = """\
For `emberpool policy lint`, which tells with them, before anything runs, whether the residents of a seat fit, and how long
a new seat takes. Measure them on a seat with this model alone: pausedMiB is what `nvidia-smi
--query-gpu=memory.used --format=csv,noheader,nounits` says while the resident is paused and has released its KV memory,
kvMiB what it says more at its highest load, and startSeconds the sum of the phases in `emberpool seat describe`.
"""

_PRIORITY: Final = "Who goes first when seats are short: higher numbers do. The default is 0 for all."

_PREEMPTIBLE: Final = """\
Work that can wait: beyond serving.min it only borrows spare seats, until somebody wants them. The last spare.min seats of a
fleet are never lent. With spare.mode Auto the fleet keeps as many as bursts have needed, and lends those above spare.min; with
Fixed there is something to lend only while more seats stand than that: after a burst, or by a schedule.
"""
_PATIENT: Final = """\
Seconds within which what waits should be taken. The default of two seconds is for people; this work has more time.
"""
_PATIENT_DRAIN_SECONDS: Final = 600

_SIGNALS: Final = """\
Where its load is read. A list takes the place of the default, which is what the gateway pushes: leave Pushed out only where
no request comes through the gateway. Of what several say of the same requests the highest counts; queues of work add up.
"""

_TTFT: Final = """\
Within what time a request should get its first token. A queue whose age puts this at risk begins a burst, whatever the
averages say.
"""

_SERVING_MIN: Final = """\
Residents that always serve, as an HPA's minReplicas; serving.max would be its maxReplicas. With 0 the model rests entirely
until the gateway has a request for it, which then waits for a promotion.
"""
