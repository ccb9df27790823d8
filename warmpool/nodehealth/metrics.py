"""What the node agent counts, in Prometheus' terms. Labels are bounded: the node's devices, and closed lists."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warmpool.metric_families import Family, Kind, Label, Row, RowMetric, counter, empty, histogram, listed
from warmpool.nodehealth import health_metrics
from warmpool.nodehealth.account import DeviceReading, Reading, unaccounted
from warmpool.nodehealth.pods import Pods
from warmpool.nodehealth.reader import DriverState, Outcome, Reader


class Asked(StrEnum):
    """How a question after memory was answered."""

    VERIFIED = "Verified"
    UNVERIFIED = "Unverified"
    REFUSED = "Refused"


_GPU = Label("gpu", "UUIDs of the node's GPUs and MIG devices")
_PARTS = ("total", "used", "free", "reserved")
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)

_ASKED = Family(
    name="emberpool_node_memory_requests_total",
    kind=Kind.COUNTER,
    help="Questions after memory, by how they were answered.",
    unit="requests",
    labels=(listed("outcome", Asked, "verified or not, or refused"),),
)
_ASKED_SECONDS = Family(
    name="emberpool_node_memory_request_seconds",
    kind=Kind.HISTOGRAM,
    help="What answering a question after memory took.",
    unit="seconds",
    buckets=_BUCKETS,
)
_READ_SECONDS = Family(
    name="emberpool_node_reading_seconds",
    kind=Kind.HISTOGRAM,
    help="What one reading of all GPUs took, which several questions may share.",
    unit="seconds",
    buckets=_BUCKETS,
)
_CALLED = Family(
    name="emberpool_node_gpu_reads_total",
    kind=Kind.COUNTER,
    help="GPUs asked in readings, by how that ended: Busy where none came in time, Failed with an error of NVML's.",
    unit="reads",
    labels=(listed("outcome", Outcome, "ends of asking a GPU"),),
)
_HUNG = Family(
    name="emberpool_node_hung_calls_total",
    kind=Kind.COUNTER,
    help="Calls to NVML or /proc that hadn't returned after 5 s.",
    unit="calls",
)
_STARTED = Family(
    name="emberpool_node_nvml_starts_total",
    kind=Kind.COUNTER,
    help="How often NVML was initialised: again after each reload of the driver.",
    unit="starts",
)
_STATE = Family(
    name="emberpool_node_nvml_state",
    kind=Kind.GAUGE,
    help="1 for the state that NVML is in.",
    unit="boolean",
    labels=(listed("state", DriverState, "states of NVML"),),
)
_HANGING = Family(
    name="emberpool_node_hanging_calls",
    kind=Kind.GAUGE,
    help="Calls to NVML or /proc that hang at present.",
    unit="calls",
)
_PODS = Family(
    name="emberpool_node_pod_resources_answering",
    kind=Kind.GAUGE,
    help="Whether the kubelet told which pods have which GPUs when it was last asked; absent without a kubelet.",
    unit="boolean",
)
_MEMORY = Family(
    name="emberpool_node_gpu_memory_bytes",
    kind=Kind.GAUGE,
    help="Memory of a device by what it is: total, used by processes, free, kept by the driver; absent while unknown.",
    unit="bytes",
    labels=(_GPU, listed("part", _PARTS, "parts of a device's memory")),
)
_UNACCOUNTED = Family(
    name="emberpool_node_gpu_unaccounted_bytes",
    kind=Kind.GAUGE,
    help="Memory in use beyond what the driver says of all processes; absent while unknown.",
    unit="bytes",
    labels=(_GPU,),
)
_PROCESSES = Family(
    name="emberpool_node_gpu_processes",
    kind=Kind.GAUGE,
    help="Processes that have a context on a device; absent while unknown.",
    unit="processes",
    labels=(_GPU,),
)
_OF_NODE = (_STATE, _HANGING, _PODS, _MEMORY, _UNACCOUNTED, _PROCESSES)

FAMILIES: tuple[Family, ...] = (
    *(_ASKED, _ASKED_SECONDS, _READ_SECONDS, _CALLED, _HUNG, _STARTED),
    *_OF_NODE,
    *health_metrics.FAMILIES,
)
"""Everything that a node agent exposes."""


class NodeMetrics:
    """The node agent's metrics in a registry of their own.

    Attributes:
        registry: what `/metrics` shows.
        health: counts what happens to GPUs' health.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._asked = counter(_ASKED, self.registry)
        self._asked_seconds = histogram(_ASKED_SECONDS, self.registry)
        self._read_seconds = histogram(_READ_SECONDS, self.registry)
        self._called = counter(_CALLED, self.registry)
        self._hung = counter(_HUNG, self.registry)
        self._started = counter(_STARTED, self.registry)
        self.health = health_metrics.HealthMetrics(self.registry)
        for asked in Asked:
            self._asked.labels(asked)
        for outcome in Outcome:
            self._called.labels(outcome)

    def asked(self, outcome: Asked, seconds: float) -> None:
        """Count a question after memory."""
        self._asked.labels(outcome).inc()
        self._asked_seconds.observe(seconds)

    def read(self, seconds: float) -> None:
        """Count a reading."""
        self._read_seconds.observe(seconds)

    def called(self, outcome: Outcome) -> None:
        """Count that a GPU was asked."""
        self._called.labels(outcome).inc()

    def hung(self) -> None:
        """Count a call that hangs."""
        self._hung.inc()

    def started(self) -> None:
        """Count that NVML was initialised."""
        self._started.inc()


class NodeCollector(Collector):
    """What is so at the moment of a scrape.

    Args:
        reader: the GPUs.
        pods: the kubelet's word.
        with_kubelet: there is one to be asked.
        recent: the last reading, if it is young enough to be shown.
    """

    def __init__(
        self, reader: Reader, pods: Pods, recent: Callable[[], Reading | None], *, with_kubelet: bool
    ) -> None:
        self._reader = reader
        self._pods = pods
        self._recent = recent
        self._with_kubelet = with_kubelet

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [empty(family) for family in _OF_NODE]

    def collect(self) -> Iterator[Metric]:
        """Look at everything."""
        reader, reading = self._reader, self._recent()
        yield RowMetric(_STATE, [((str(state),), float(reader.state is state)) for state in DriverState])
        yield RowMetric(_HANGING, [((), len(reader.hanging))])
        yield RowMetric(_PODS, [((), float(self._pods.known))] if self._with_kubelet else [])
        devices = reading.devices if reading is not None else ()
        yield RowMetric(_MEMORY, [row for each in devices for row in _memory(each)])
        beyond = [(each.device.uuid, unaccounted(each)) for each in devices]
        yield RowMetric(_UNACCOUNTED, [((uuid,), size) for uuid, size in beyond if size is not None])
        yield RowMetric(
            _PROCESSES,
            [((each.device.uuid,), len(each.processes)) for each in devices if each.processes is not None],
        )


def _memory(read: DeviceReading) -> Iterator[Row]:
    memory = read.memory
    if memory is None:
        return
    parts = (memory.total_bytes, memory.used_bytes, memory.free_bytes, memory.reserved_bytes)
    for part, size in zip(_PARTS, parts, strict=True):
        if size is not None:
            yield (read.device.uuid, part), size
