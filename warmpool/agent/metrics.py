"""What the agent counts, in Prometheus' terms. Labels are bounded: policies of the seat, and closed lists."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warmpool.agent.ahead import Place, Stager
from warmpool.agent.board import Board, Record
from warmpool.agent.orders import OrderKind, Result
from warmpool.agent.proof import Check, Verdict
from warmpool.agent.room import SeatRoom
from warmpool.engines.arguments import memory_utilization
from warmpool.engines.capabilities import Capability, Change, Ground
from warmpool.engines.capabilities import Verdict as ChangeVerdict
from warmpool.errors import AgentError
from warmpool.metric_families import (
    Family,
    Kind,
    Label,
    Row,
    RowMetric,
    combinations,
    counter,
    empty,
    histogram,
    listed,
)
from warmpool.states import Depth, ResidentState
from warmpool.tiers import Budget
from warmpool.timeline import OTHER_TIER, PHASES, TIERS, init_seconds

ORDER_PHASES = (
    *("preempt", "kv", "resume", "canary", "open", "drain", "abort", "pause", "undo", "proof", "probe"),
    *("displace", "park", "unpark"),
)
"""Steps of orders, as `warmpool.agent.operations` names them."""
OTHER = "other"
"""Stands for steps of orders that aren't listed."""
_CODES = tuple(
    dict.fromkeys(
        ("Done", "EngineFailed", AgentError.code, *(each.code for each in AgentError.__subclasses__()))
    )
)

_PHASES_OF = {
    OrderKind.RESUME: ("preempt", "displace", "unpark", "kv", "resume", "canary", "open"),
    OrderKind.DRAIN: ("drain", "abort"),
    OrderKind.PAUSE: ("pause",),
    OrderKind.PROVE: ("kv", "resume", "proof", "probe", "pause"),
    OrderKind.PARK: ("park",),
    OrderKind.UNPARK: ("displace", "unpark"),
}
"""Steps that an order of each kind can have: they start at zero, so that the first one is a rate and no new series."""

_POLICY = Label("policy", "the residents of the seat")
_KIND = listed("kind", OrderKind, "orders that an agent takes")
_CHANGE = listed("change", Change, "changes that engines are told")
_VERDICT = listed("verdict", ChangeVerdict, "verdicts on a change")
_DEPTH = listed("depth", Depth, "depths of sleep")
_TIER = listed("tier", (*TIERS, OTHER_TIER), "where weights come from")
_ORDER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_ORDERS = Family(
    name="emberpool_agent_orders_total",
    kind=Kind.COUNTER,
    help="Orders by how they ended: Done, or the code of the error. Proofs are among them.",
    unit="orders",
    labels=(_KIND, listed("outcome", _CODES, "Done and the codes of errors")),
)
_ORDER_SECONDS = Family(
    name="emberpool_agent_order_phase_seconds",
    kind=Kind.HISTOGRAM,
    help="What each step of a carried-out order took.",
    unit="seconds",
    labels=(_KIND, listed("phase", (*ORDER_PHASES, OTHER), "steps of orders")),
    buckets=_ORDER_BUCKETS,
)
_ABORTED = Family(
    name="emberpool_agent_requests_aborted_total",
    kind=Kind.COUNTER,
    help="Requests ended early by a drain's deadline.",
    unit="requests",
)
_PROOFS = Family(
    name="emberpool_agent_proofs_total",
    kind=Kind.COUNTER,
    help="Known prompts asked of a resident, by how it answered: proofs in full, canaries for one token.",
    unit="proofs",
    labels=(_POLICY, listed("check", Check, "kinds of questions"), listed("outcome", Verdict, "answers")),
)
_STATE = Family(
    name="emberpool_agent_resident_state",
    kind=Kind.GAUGE,
    help="1 for the state that the resident is in.",
    unit="boolean",
    labels=(_POLICY, listed("state", ResidentState, "states of a resident")),
)
_MEMORY = Family(
    name="emberpool_agent_resident_memory_bytes",
    kind=Kind.GAUGE,
    help="Device memory that its engine holds, host memory without a GPU; absent while unknown.",
    unit="bytes",
    labels=(_POLICY,),
)
_KV = Family(
    name="emberpool_agent_resident_kv_bytes",
    kind=Kind.GAUGE,
    help="Size of its engine's KV memory; 0 while it is given back, absent while unknown.",
    unit="bytes",
    labels=(_POLICY,),
)
_IN_FLIGHT = Family(
    name="emberpool_agent_resident_in_flight_requests",
    kind=Kind.GAUGE,
    help="Requests that its guard has accepted and not finished, as last read.",
    unit="requests",
    labels=(_POLICY,),
)
_RESTARTS = Family(
    name="emberpool_agent_resident_restarts_total",
    kind=Kind.COUNTER,
    help="Restarts of its engine since the agent's start.",
    unit="restarts",
    labels=(_POLICY,),
)
_PROVEN = Family(
    name="emberpool_agent_resident_proven_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time of the last proof or canary that passed; absent before the first and after one that failed.",
    unit="seconds",
    labels=(_POLICY,),
)
_START = Family(
    name="emberpool_agent_startup_phase_seconds",
    kind=Kind.GAUGE,
    help="What each phase of the resident's last completed start took. They add up to the whole of it.",
    unit="seconds",
    labels=(_POLICY, listed("phase", PHASES, "phases of a start")),
)
_INIT = Family(
    name="emberpool_engine_init_duration_seconds",
    kind=Kind.GAUGE,
    help="What the engine's last completed start took from the order to start its process until it was ready, without waiting.",
    unit="seconds",
    labels=(
        Label("model", "the residents' models"),
        Label("tensor_parallel_size", "what engines tell, 1 where they don't"),
        Label("memory_utilization", "what engines' commands say, empty where they don't"),
    ),
)
_LOAD_SECONDS = Family(
    name="emberpool_agent_weight_load_seconds",
    kind=Kind.GAUGE,
    help="How long the weights took to come at the resident's last completed start, by where they came from.",
    unit="seconds",
    labels=(_POLICY, _TIER),
)
_LOAD_RATE = Family(
    name="emberpool_agent_weight_load_bytes_per_second",
    kind=Kind.GAUGE,
    help="How fast they came; absent where the engine doesn't tell how many they are.",
    unit="bytes per second",
    labels=(_POLICY, _TIER),
)
_FIRST_REQUEST = Family(
    name="emberpool_agent_first_request_seconds",
    kind=Kind.GAUGE,
    help="What the first request to the engine's last completed start took: what a client would have waited for without warm-up.",
    unit="seconds",
    labels=(_POLICY,),
)
_CACHE = Family(
    name="emberpool_agent_compile_cache_lookups",
    kind=Kind.GAUGE,
    help="What the engine's last completed start found in its compile cache, and what it had to compile; absent if it doesn't tell.",
    unit="lookups",
    labels=(_POLICY, listed("outcome", ("Hit", "Miss"), "found or compiled")),
)
_CAPABILITY = Family(
    name="emberpool_agent_resident_capability",
    kind=Kind.GAUGE,
    help="1 for the ground on which its running engine was granted or refused a capability; absent until it was probed.",
    unit="boolean",
    labels=(
        _POLICY,
        listed("capability", Capability, "what engines may be able to do"),
        listed("ground", Ground, "Tried and Declared grant, all others refuse"),
    ),
)
_VERIFICATION = Family(
    name="emberpool_agent_resident_verification",
    kind=Kind.GAUGE,
    help="1 for what its engine's own state says of the last change that it was told; absent before the first.",
    unit="boolean",
    labels=(_POLICY, _CHANGE, _VERDICT),
)
_CHECKS = Family(
    name="emberpool_agent_memory_checks_total",
    kind=Kind.COUNTER,
    help="Changes by what the memory that the engine held afterwards says of them. Contradicted fails the change.",
    unit="checks",
    labels=(_POLICY, _CHANGE, _VERDICT),
)
_HELD = Family(
    name="emberpool_agent_resident_held_bytes",
    kind=Kind.GAUGE,
    help="Device memory that its engine held when it was last measured at that depth; absent until it was.",
    unit="bytes",
    labels=(_POLICY, _DEPTH),
)
_PARKED = Family(
    name="emberpool_agent_resident_parked_bytes",
    kind=Kind.GAUGE,
    help="Host memory that its weights take, parked or as a copy that its engine keeps; absent while unknown.",
    unit="bytes",
    labels=(_POLICY,),
)
_WAKE = Family(
    name="emberpool_agent_resident_wake_seconds",
    kind=Kind.GAUGE,
    help="Median time of its last 16 promotions from that depth, from the order to the canary's answer; absent before the first.",
    unit="seconds",
    labels=(_POLICY, _DEPTH),
)
_WAITING = Family(
    name="emberpool_agent_resident_waiting",
    kind=Kind.GAUGE,
    help="1 while its start-up waits for memory or for a witness; the state tells for which.",
    unit="boolean",
    labels=(_POLICY,),
)
_DEVICE = Family(
    name="emberpool_agent_device_memory_bytes",
    kind=Kind.GAUGE,
    help="The seat's budget of device memory. Stage is what the node's stage daemon takes of it. Free is what is left of Device after the others, on several GPUs so many times what the tightest has left; both are absent while unknown.",
    unit="bytes",
    labels=(
        listed(
            "part", ("Device", "Paused", "LargestCompute", "Stage", "Reserve", "Free"), "parts of the budget"
        ),
    ),
)
_HOST = Family(
    name="emberpool_agent_host_memory_bytes",
    kind=Kind.GAUGE,
    help="The seat's budget of host memory for parked residents, and what they take of it.",
    unit="bytes",
    labels=(listed("part", ("Budget", "Parked"), "parts of the budget"),),
)
_VERIFIED = Family(
    name="emberpool_agent_memory_verified",
    kind=Kind.GAUGE,
    help="1 if device memory and what residents hold were measured; 0 if the budget stands on configured figures.",
    unit="boolean",
)
_STAGE = Family(
    name="emberpool_agent_stage_checkpoints",
    kind=Kind.GAUGE,
    help="Checkpoints of the seat's residents, and those that controllers ordered, by where they are in the memory of the node's stage daemon; absent where none is asked, or it wasn't yet.",
    unit="checkpoints",
    labels=(listed("place", Place, "places in the stage daemon's memory"),),
)
_OF_BOARD = (
    *(_STATE, _MEMORY, _HELD, _PARKED, _KV, _IN_FLIGHT, _RESTARTS, _PROVEN, _WAKE, _WAITING, _START),
    *(_INIT, _LOAD_SECONDS, _LOAD_RATE, _FIRST_REQUEST, _CACHE),
    *(_CAPABILITY, _VERIFICATION, _DEVICE, _HOST, _VERIFIED, _STAGE),
)

FAMILIES: tuple[Family, ...] = (_ORDERS, _ORDER_SECONDS, _ABORTED, _PROOFS, _CHECKS, *_OF_BOARD)
"""Everything that an agent exposes."""


class AgentMetrics:
    """The agent's metrics in a registry of their own.

    Attributes:
        registry: what `/metrics` shows.
    """

    def __init__(self, board: Board, room: SeatRoom, stager: Stager | None = None) -> None:
        self.registry = CollectorRegistry()
        self._orders = counter(_ORDERS, self.registry)
        self._phases = histogram(_ORDER_SECONDS, self.registry)
        self._aborted = counter(_ABORTED, self.registry)
        for each in combinations(_ORDERS, 0):
            self._orders.labels(*each)
        for kind, phases in _PHASES_OF.items():
            for phase in phases:
                self._phases.labels(kind, phase)
        self._proofs = counter(_PROOFS, self.registry)
        self._checks = counter(_CHECKS, self.registry)
        for record in board.records:
            for each in combinations(_PROOFS, 1):
                self._proofs.labels(record.policy, *each)
            for each in combinations(_CHECKS, 1):
                self._checks.labels(record.policy, *each)
        self.registry.register(_Residents(board, room, stager))

    def done(self, kind: OrderKind, result: Result) -> None:
        """Count an order that was carried out."""
        self._orders.labels(kind, "Done").inc()
        self._aborted.inc(result.aborted)
        for phase, seconds in result.phases.items():
            self._phases.labels(kind, phase if phase in ORDER_PHASES else OTHER).observe(seconds)

    def not_done(self, kind: OrderKind, code: str) -> None:
        """Count an order that was refused or failed, by its error's code."""
        self._orders.labels(kind, code).inc()

    def proved(self, policy: str, check: Check, verdict: Verdict) -> None:
        """Count how a resident answered a known prompt."""
        self._proofs.labels(policy, check, verdict).inc()

    def judged(self, policy: str, change: Change, verdict: ChangeVerdict) -> None:
        """Count what a measurement said of a change."""
        self._checks.labels(policy, change, verdict).inc()


class _Residents(Collector):
    """The board and the seat's memory, read when somebody scrapes."""

    def __init__(self, board: Board, room: SeatRoom, stager: Stager | None) -> None:
        self._board = board
        self._room = room
        self._stager = stager

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [empty(family) for family in _OF_BOARD]

    def collect(self) -> Iterator[Metric]:
        """Read the board."""
        records = self._board.records
        yield RowMetric(
            _STATE,
            [((r.policy, str(state)), float(r.state is state)) for r in records for state in ResidentState],
        )
        yield _per_resident(_MEMORY, records, lambda r: r.memory_bytes)
        yield RowMetric(_HELD, [((r.policy, str(d)), size) for r in records for d, size in r.held.items()])
        yield _per_resident(_PARKED, records, lambda r: r.parked_bytes)
        yield _per_resident(_KV, records, _kv)
        yield _per_resident(_IN_FLIGHT, records, lambda r: r.in_flight)
        yield _per_resident(_RESTARTS, records, lambda r: r.restarts)
        yield _per_resident(_PROVEN, records, lambda r: r.proven_at)
        yield RowMetric(
            _WAKE, [((r.policy, str(d)), median) for r in records for d, median in r.wakes.medians().items()]
        )
        yield _per_resident(_WAITING, records, lambda r: float(bool(r.waiting)))
        yield RowMetric(_START, [row for record in records for row in _start(record)])
        yield from _of_start(records)
        yield RowMetric(_CAPABILITY, [row for record in records for row in _capabilities(record)])
        yield RowMetric(_VERIFICATION, [row for record in records for row in _verification(record)])
        budget = self._room.budget
        yield RowMetric(_DEVICE, _device(budget))
        yield RowMetric(
            _HOST, [(("Budget",), float(budget.host_bytes)), (("Parked",), float(budget.parked_bytes))]
        )
        yield RowMetric(_VERIFIED, [((), float(budget.verified))])
        yield RowMetric(_STAGE, _stage(self._stager))


def _per_resident(
    family: Family, records: Sequence[Record], read: Callable[[Record], float | None]
) -> RowMetric:
    """Return one number for each resident; nothing for whom it isn't known."""
    return RowMetric(
        family, [((record.policy,), number) for record in records if (number := read(record)) is not None]
    )


def _kv(record: Record) -> int | None:
    return 0 if record.kv_released and record.kv_bytes is not None else record.kv_bytes


def _start(record: Record) -> Iterator[Row]:
    """Return the phases of a resident's last start."""
    for phase, seconds in record.phases.items():
        yield (record.policy, phase), seconds


def _of_start(records: Sequence[Record]) -> Iterator[RowMetric]:
    """Return what else is known of residents' last starts."""
    starts = [(record, record.start) for record in records if record.start is not None]
    loads = [(record.policy, start.weights) for record, start in starts if start.weights is not None]
    caches = [
        (record.policy, start.compile_cache) for record, start in starts if start.compile_cache is not None
    ]
    yield RowMetric(_INIT, dict(_init(record) for record, _ in starts).items())
    yield RowMetric(_LOAD_SECONDS, [((policy, load.listed_tier), load.seconds) for policy, load in loads])
    yield RowMetric(
        _LOAD_RATE,
        [((policy, load.listed_tier), load.rate) for policy, load in loads if load.rate is not None],
    )
    yield _per_resident(
        _FIRST_REQUEST, records, lambda r: None if r.start is None else r.start.first_request_seconds
    )
    yield RowMetric(
        _CACHE,
        [
            ((policy, outcome), float(count))
            for policy, cache in caches
            for outcome, count in (("Hit", cache.hits), ("Miss", cache.misses))
        ],
    )


def _init(record: Record) -> Row:
    """Return what an engine took to be ready; of two that nothing tells apart the last one counts."""
    size = str(record.running.tensor_parallel_size or 1)
    labels = (record.config.model, size, memory_utilization(record.config.command))
    return labels, init_seconds(record.phases)


def _device(budget: Budget) -> Iterator[Row]:
    parts = {
        "Device": budget.device_bytes,
        "Paused": budget.paused_bytes,
        "LargestCompute": budget.largest_compute_bytes,
        "Stage": budget.stage_bytes,
        "Reserve": budget.reserve_bytes,
        "Free": budget.free_bytes,
    }
    for part, size in parts.items():
        if size is not None:
            yield (part,), float(size)


def _stage(stager: Stager | None) -> Iterator[Row]:
    places = [each.place for each in stager.places.values()] if stager is not None else []
    for place in Place if places else ():
        yield (str(place),), float(places.count(place))


def _capabilities(record: Record) -> Iterator[Row]:
    found = record.capabilities
    for capability, finding in found.findings.items() if found is not None else ():
        for ground in Ground:
            yield (record.policy, capability, ground), float(finding.ground is ground)


def _verification(record: Record) -> Iterator[Row]:
    last = record.verification
    if last is None:
        return
    for change in Change:
        for verdict in ChangeVerdict:
            yield (record.policy, change, verdict), float((change, verdict) == (last.change, last.verdict))
