"""What the node agent counts and shows of GPUs' health, in Prometheus' terms. What is unknown is absent."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warmpool.metric_families import Family, Kind, Label, Row, RowMetric, counter, empty, histogram, listed
from warmpool.nodehealth.findings import is_slowed
from warmpool.nodehealth.readings import Canary, Event, FabricState, GpuReading, Source, Told
from warmpool.nodehealth.records import XID, Code
from warmpool.nodehealth.verdicts import UNKNOWN, NodeVerdict
from warmpool.nodehealth.xids import DEFAULT_TABLE
from warmpool.seats import Verdict

OTHER: Final = "Other"
WORDS: Final = (*map(str, Verdict), UNKNOWN)
_XIDS: Final = frozenset(DEFAULT_TABLE.rules)
_REASONS: Final = frozenset({*map(str, Code), *(f"{XID}{xid}" for xid in _XIDS)})
_SOURCES: Final = ("Events", "KernelLog", "File")
_GPU: Final = Label("gpu", "UUIDs of the node's GPUs")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_HEALTH = Family(
    name="emberpool_gpu_health",
    kind=Kind.GAUGE,
    help="1 for what is said of a GPU: Unknown where it doesn't answer and nothing was found before.",
    unit="boolean",
    labels=(_GPU, listed("verdict", WORDS, "verdicts")),
)
_REASON = Family(
    name="emberpool_gpu_health_reason",
    kind=Kind.GAUGE,
    help="1 for each reason of a GPU's verdict; absent without.",
    unit="boolean",
    labels=(
        _GPU,
        listed(
            "reason",
            (*sorted(_REASONS), OTHER),
            "reasons, and Other for codes of errors that no default rule has",
        ),
    ),
)
_AGE = Family(
    name="emberpool_gpu_health_age_seconds",
    kind=Kind.GAUGE,
    help="How long ago a GPU last told of its health; absent if it never did.",
    unit="seconds",
    labels=(_GPU,),
)
_EVENTS = Family(
    name="emberpool_gpu_events_total",
    kind=Kind.COUNTER,
    help="Events that the driver told of a GPU, by what they are about and who told; both sources tell of most errors.",
    unit="events",
    labels=(_GPU, listed("told", Told, "kinds of events"), listed("source", Source, "who told")),
)
_XID = Family(
    name="emberpool_gpu_xids_total",
    kind=Kind.COUNTER,
    help="Errors (Xids) that the driver told of a GPU, by code and who told.",
    unit="errors",
    labels=(
        _GPU,
        listed("xid", (*map(str, sorted(_XIDS)), OTHER), "codes of the default table, and Other"),
        listed("source", Source, "who told"),
    ),
)
_CANARIES = Family(
    name="emberpool_gpu_canaries_total",
    kind=Kind.COUNTER,
    help=(
        "Residents on a GPU that were asked what is known, by what came of it: Uncounted failed where the same had failed "
        "elsewhere, or had never passed, which says nothing of the GPU; Refused weren't started, by what a pre-flight has found of it."
    ),
    unit="canaries",
    labels=(_GPU, listed("outcome", ("Passed", "Failed", "Uncounted", "Refused"), "outcomes")),
)
_UNPLACED = Family(
    name="emberpool_node_unplaced_events_total",
    kind=Kind.COUNTER,
    help="Events whose GPU couldn't be found out; nothing follows from them.",
    unit="events",
)
_READ = Family(
    name="emberpool_node_health_reading_seconds",
    kind=Kind.HISTOGRAM,
    help="What reading the health of all GPUs took.",
    unit="seconds",
    buckets=_BUCKETS,
)
_NOT_SAVED = Family(
    name="emberpool_node_health_unsaved_total",
    kind=Kind.COUNTER,
    help="Times that what is remembered of GPUs couldn't be written.",
    unit="times",
)
_GPUS = Family(
    name="emberpool_node_gpus",
    kind=Kind.GAUGE,
    help="GPUs that the node should have, and that the driver lists.",
    unit="GPUs",
    labels=(listed("state", ("Expected", "Listed"), "what is counted"),),
)
_SOURCE = Family(
    name="emberpool_node_health_source",
    kind=Kind.GAUGE,
    help="Whether a source works: events of NVML, the kernel's log, and the file with what is remembered.",
    unit="boolean",
    labels=(listed("source", _SOURCES, "sources"),),
)
_RECOVERY = Family(
    name="emberpool_gpu_recovery_action",
    kind=Kind.GAUGE,
    help="What the driver wants done with a GPU, by NVML's number: 0 is nothing; absent where the driver has no such word.",
    unit="action",
    labels=(_GPU,),
)
_ERRORS = Family(
    name="emberpool_gpu_memory_errors",
    kind=Kind.GAUGE,
    help="Memory errors of a GPU since its driver was loaded; it falls to 0 with a reload.",
    unit="errors",
    labels=(
        _GPU,
        listed("kind", ("Corrected", "Uncorrected"), "kinds of errors"),
        listed(
            "place", ("All", "Dram", "Sram"), "kinds of memory; corrected errors are told of all together"
        ),
    ),
)
_REPLAYS = Family(
    name="emberpool_gpu_pcie_replays",
    kind=Kind.GAUGE,
    help="Packets that a GPU's PCIe link has sent again since it was reset.",
    unit="packets",
    labels=(_GPU,),
)
_LINK_ERRORS = Family(
    name="emberpool_gpu_link_errors",
    kind=Kind.GAUGE,
    help="Errors of a GPU's links to others since its driver was loaded: packets sent again, and links that did not come back.",
    unit="errors",
    labels=(_GPU, listed("kind", ("Replayed", "Unrecovered"), "kinds of errors")),
)
_FABRIC = Family(
    name="emberpool_gpu_fabric_joined",
    kind=Kind.GAUGE,
    help="Whether a GPU has joined its NVLink fabric; absent where there is none.",
    unit="boolean",
    labels=(_GPU,),
)
_ROWS = Family(
    name="emberpool_gpu_remapped_rows",
    kind=Kind.GAUGE,
    help="Memory rows of a GPU that were replaced, by which errors.",
    unit="rows",
    labels=(_GPU, listed("cause", ("Correctable", "Uncorrectable"), "causes")),
)
_CELSIUS = Family(
    name="emberpool_gpu_temperature_celsius",
    kind=Kind.GAUGE,
    help="Temperature of a GPU.",
    unit="degrees Celsius",
    labels=(_GPU, listed("sensor", ("Core", "Memory"), "sensors")),
)
_WATTS = Family(
    name="emberpool_gpu_power_watts",
    kind=Kind.GAUGE,
    help="Power that a GPU takes.",
    unit="watts",
    labels=(_GPU,),
)
_SLOWED = Family(
    name="emberpool_gpu_slowed",
    kind=Kind.GAUGE,
    help="Whether hardware slowed a GPU down at the last reading, for heat or power; a power cap isn't that.",
    unit="boolean",
    labels=(_GPU,),
)
_LANES = Family(
    name="emberpool_gpu_pcie_lanes",
    kind=Kind.GAUGE,
    help="PCIe lanes that a GPU uses.",
    unit="lanes",
    labels=(_GPU,),
)
_LINKS = Family(
    name="emberpool_gpu_links",
    kind=Kind.GAUGE,
    help="Links of a GPU to others.",
    unit="links",
    labels=(_GPU, listed("state", ("Active", "Inactive"), "states of links")),
)
_OF_VERDICTS = (_HEALTH, _REASON, _AGE, _GPUS, _SOURCE)
_OF_READINGS = (
    _RECOVERY,
    _ERRORS,
    _ROWS,
    _CELSIUS,
    _WATTS,
    _SLOWED,
    _LANES,
    _REPLAYS,
    _LINKS,
    _LINK_ERRORS,
    _FABRIC,
)
_SHOWN = (*_OF_VERDICTS, *_OF_READINGS)
FAMILIES: tuple[Family, ...] = (_EVENTS, _XID, _CANARIES, _UNPLACED, _READ, _NOT_SAVED, *_SHOWN)
"""Everything that is exposed of GPUs' health."""


class HealthMetrics:
    """Counts what happens.

    Args:
        registry: what `/metrics` shows.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = counter(_EVENTS, registry)
        self._xids = counter(_XID, registry)
        self._canaries = counter(_CANARIES, registry)
        self._unplaced = counter(_UNPLACED, registry)
        self._read = histogram(_READ, registry)
        self._not_saved = counter(_NOT_SAVED, registry)

    def event(self, event: Event) -> None:
        """Count an event of a GPU."""
        self._events.labels(event.uuid, event.told, event.source).inc()
        if event.told is Told.XID:
            xid = str(event.xid) if event.xid in _XIDS else OTHER
            self._xids.labels(event.uuid, xid, event.source).inc()

    def unplaced(self) -> None:
        """Count an event whose GPU couldn't be found out."""
        self._unplaced.inc()

    def canary(self, canary: Canary, *, counts: bool) -> None:
        """Count a canary."""
        failed = "Refused" if canary.fault else "Failed"
        outcome = "Passed" if canary.passed else failed if counts else "Uncounted"
        for gpu in canary.gpus:
            self._canaries.labels(gpu, outcome).inc()

    def health_read(self, seconds: float) -> None:
        """Count a reading."""
        self._read.observe(seconds)

    def not_saved(self) -> None:
        """Count that what is remembered couldn't be written."""
        self._not_saved.inc()


class HealthCollector(Collector):
    """What is so at the moment of a scrape.

    Args:
        verdict: what is said of the node.
        readings: the last readings of its GPUs that are young enough to be shown.
        working: which sources work, by name.
    """

    def __init__(
        self,
        verdict: Callable[[], NodeVerdict],
        readings: Callable[[], Iterable[GpuReading]],
        working: Callable[[], dict[str, bool]],
    ) -> None:
        self._verdict = verdict
        self._readings = readings
        self._working = working

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [empty(family) for family in _SHOWN]

    def collect(self) -> Iterator[Metric]:
        """Look at everything."""
        found = self._verdict()
        gpus = found.gpus
        yield RowMetric(
            _HEALTH, [((gpu.uuid, word), float(gpu.word == word)) for gpu in gpus for word in WORDS]
        )
        reasons = {
            (gpu.uuid, reason.code if reason.code in _REASONS else OTHER)
            for gpu in gpus
            for reason in gpu.reasons
        }
        yield RowMetric(_REASON, [((uuid, str(code)), 1.0) for uuid, code in sorted(reasons)])
        ages = [(gpu.uuid, gpu.age_seconds) for gpu in gpus]
        yield RowMetric(_AGE, [((uuid,), age) for uuid, age in ages if age is not None])
        yield RowMetric(_GPUS, [(("Expected",), found.expected), (("Listed",), found.listed)])
        yield RowMetric(_SOURCE, [((name,), float(works)) for name, works in self._working().items()])
        readings = list(self._readings())
        for family, rows in _ROWS_OF.items():
            yield RowMetric(family, [row for reading in readings for row in rows(reading)])


def _given(reading: GpuReading, **values: float | None) -> Iterator[Row]:
    """Return a row for each label that has a value."""
    for label, value in values.items():
        if value is not None:
            yield (reading.uuid, label), value


def _one(value: Callable[[GpuReading], float | None]) -> Callable[[GpuReading], Iterator[Row]]:
    def rows(reading: GpuReading) -> Iterator[Row]:
        found = value(reading)
        if found is not None:
            yield (reading.uuid,), float(found)

    return rows


def _row_rows(reading: GpuReading) -> Iterator[Row]:
    if reading.rows is not None:
        yield from _given(
            reading, Correctable=reading.rows.correctable, Uncorrectable=reading.rows.uncorrectable
        )


def _link_rows(reading: GpuReading) -> Iterator[Row]:
    if reading.links is not None:
        yield from _given(reading, Active=reading.links.active, Inactive=reading.links.inactive)


def _error_rows(reading: GpuReading) -> Iterator[Row]:
    ecc = reading.ecc
    found = (
        ("Corrected", "All", ecc.corrected),
        ("Uncorrected", "All", ecc.uncorrected),
        ("Uncorrected", "Dram", ecc.dram_uncorrected),
        ("Uncorrected", "Sram", ecc.sram_uncorrected),
    )
    for kind, place, count in found:
        if count is not None:
            yield (reading.uuid, kind, place), count


def _link_error_rows(reading: GpuReading) -> Iterator[Row]:
    if reading.links is not None:
        yield from _given(reading, Replayed=reading.links.errors, Unrecovered=reading.links.failed_recoveries)


def _joined(reading: GpuReading) -> float | None:
    fabric = reading.fabric
    if fabric is None or fabric.state is FabricState.NOT_SUPPORTED:
        return None
    return float(fabric.state is FabricState.COMPLETED)


_ROWS_OF: Final[dict[Family, Callable[[GpuReading], Iterator[Row]]]] = {
    _RECOVERY: _one(lambda reading: reading.recovery),
    _ERRORS: _error_rows,
    _ROWS: _row_rows,
    _CELSIUS: lambda reading: _given(reading, Core=reading.celsius, Memory=reading.memory_celsius),
    _WATTS: _one(lambda reading: reading.watts),
    _SLOWED: _one(is_slowed),
    _LANES: _one(lambda reading: reading.pcie.width),
    _LINKS: _link_rows,
    _REPLAYS: _one(lambda reading: reading.pcie.replays),
    _LINK_ERRORS: _link_error_rows,
    _FABRIC: _one(_joined),
}
