"""Watching over the GPUs: readings every 15 s, events as they come, the kernel's log, and what follows from them, remembered.

Everything that is found goes through the rules, in the loop, one after the other. An event has the GPUs read at once, because the
driver's own verdict on it counts first. What is remembered is written when it changes, and else once a minute for the counters.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from warmpool.nodehealth.copies import Copying, restored
from warmpool.nodehealth.kernel_log import KernelLog
from warmpool.nodehealth.kmsg import KernelXid, Position, address_of
from warmpool.nodehealth.lanes import Lane, LaneBusy
from warmpool.nodehealth.latches import Kept, Latches, gist
from warmpool.nodehealth.nvml import Nvml, NvmlError, NvmlUnsupported
from warmpool.nodehealth.probe import HealthProbe
from warmpool.nodehealth.reader import DriverState, Reader
from warmpool.nodehealth.readings import Canary, Event, NodeReading, Source, Told
from warmpool.nodehealth.records import NodeRecord, Rules
from warmpool.nodehealth.rules import counts, undecided, with_canary, with_event, with_reading
from warmpool.nodehealth.verdicts import NodeVerdict, judge

_LOG = logging.getLogger(__name__)

READ_SECONDS: Final = 15.0
"""How often the GPUs are read when nothing happens."""
_SOON_SECONDS: Final = 2.0  # while something waits for the next reading
_SOONEST_SECONDS: Final = 1.0  # between two readings, whatever is told: a storm of events is one
_SAVE_SECONDS: Final = 60.0
_FILE_SECONDS: Final = 10.0
_LAST_SAVE_SECONDS: Final = 1.0
_WAIT_MILLISECONDS: Final = 500
_WATCH_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 1.0
_NEVER_SECONDS: Final = 60.0
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of the kernel's boot; empty if it can't be read."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HealthTally(Protocol):
    """Is told what happens, to count it."""

    def event(self, event: Event) -> None:
        """Count an event of a GPU."""

    def unplaced(self) -> None:
        """Count an event whose GPU couldn't be found out."""

    def canary(self, canary: Canary, *, counts: bool) -> None:
        """Count a canary, by what came of it and whether that says something of its GPUs."""

    def health_read(self, seconds: float) -> None:
        """Count a reading, and how long it took."""

    def not_saved(self) -> None:
        """Count that what is remembered couldn't be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where things come from.

    Attributes:
        probe: reads the GPUs.
        nvml: tells of events.
        reader: keeps the driver open.
        boot: id of the kernel's boot.
        kmsg: the kernel's log; None: it isn't read.
        latches: where what is remembered is kept; None: nowhere.
        copied: controllers keep copies of what is remembered.
        wall: Unix seconds.
    """

    probe: HealthProbe
    nvml: Nvml
    reader: Reader
    boot: str
    kmsg: Path | None = None
    latches: Latches | None = None
    copied: bool = False
    wall: Callable[[], float] = time.time


class HealthMonitor:
    """Watches over the GPUs.

    Args:
        sources: where things come from.
        rules: what verdicts follow.
        tally: what counts.

    Attributes:
        epoch: grows with each change of a verdict.
        events_reason: why NVML doesn't tell of events; empty if it does.
        kernel_log: the kernel's log; None if it isn't read.
        file_reason: why what is remembered isn't kept; empty if it is.
        asks: nothing was remembered, and no controller has said yet what it keeps.
        settled: set once the GPUs have been read for the first time.
    """

    def __init__(self, sources: Sources, rules: Rules, tally: HealthTally) -> None:
        self._sources = sources
        self._rules = rules
        self._tally = tally
        self._record = NodeRecord()
        self._words: Mapping[str, str] = MappingProxyType({})
        self._changed = asyncio.Event()
        self._soon = asyncio.Event()
        self._file_lane = Lane("what is remembered of GPUs", lambda: None)
        self._unplaced: set[tuple[Told, int]] = set()
        self._saved: tuple[object, ...] = ()
        self._saved_at = float("-inf")
        self.epoch = 0
        self.events_reason = "not watched for yet"
        self.kernel_log = None if sources.kmsg is None else KernelLog(sources.kmsg, self._kernel_told)
        self.file_reason = "" if sources.latches is not None else "it is kept nowhere"
        self.settled = asyncio.Event()
        self.asks = False
        self._copying = Copying()

    @property
    def record(self) -> NodeRecord:
        """What is remembered."""
        return self._record

    @property
    def verdict(self) -> NodeVerdict:
        """What is said of the node and its GPUs now."""
        return judge(self._record, self._rules, self._sources.wall())

    def verdict_on(self, gpus: Collection[str]) -> NodeVerdict:
        """Return what is said of the node, and of some of its GPUs, now: each seat asks after its own every second."""
        return judge(self._record, self._rules, self._sources.wall(), gpus)

    def canary(self, gpus: frozenset[str], *, passed: bool, proof: str = "", fault: str = "") -> bool:
        """Take note of what came of a canary.

        Args:
            gpus: UUIDs of the GPUs that it computes on.
            passed: whether it answered as it should.
            proof: stands for its engine and what that should answer; empty where nobody says.
            fault: what was found of the GPUs before an engine was started, in words; empty for what one answered.

        Returns:
            Whether it says something of the GPUs.
        """
        told = Canary(at=self._sources.wall(), gpus=gpus, passed=passed, proof=proof, fault=fault)
        says = counts(self._record, told)
        self._tally.canary(told, counts=says)
        if not says:
            _LOG.warning(
                "a resident on %s answered otherwise than it should, as it did elsewhere on this node or since it first came: "
                "nothing is said against the GPU",
                ", ".join(sorted(gpus)),
            )
        self._take(with_canary(self._record, told, self._rules))
        return says

    async def run(self) -> None:
        """Watch until cancelled."""
        kept = await self._load()
        self._record, self.epoch = kept.record, kept.epoch
        self.asks = self._sources.copied and (kept.asks or not kept.record.at)
        if self.asks:  # its GPUs are unknown until a controller answers
            self._record = replace(self._record, lost=True)
        try:
            await self._sources.reader.settled.wait()
            await self._read()
            self.settled.set()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_reading())
                tasks.create_task(self._watch())
                if self.kernel_log is not None:
                    tasks.create_task(self.kernel_log.run(after=self._after(kept)))
        finally:
            await self._save_at_the_end()
            self._file_lane.close()

    def _after(self, kept: Kept) -> int | None:
        """Return after which record of the kernel's log to go on; what came before an agent first ran is not looked at.

        A GPU that has had an error long ago may have been reset since, and nobody knows. But where what was remembered is lost,
        all of this boot is looked at again.
        """
        if kept.position is None:
            return -1 if kept.record.lost else None
        return kept.position.sequence if kept.position.boot == self._sources.boot else -1

    # ------------------------------------------------------------------ readings

    async def _keep_reading(self) -> None:
        while True:
            await self._save()
            await asyncio.sleep(_SOONEST_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause() - _SOONEST_SECONDS):
                    await self._soon.wait()
            self._soon.clear()  # what is told from now on may not be in this reading
            await self._read()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reading = await self._sources.probe.read(self._sources.wall())
        self._tally.health_read(loop.time() - began)
        self.take_reading(reading)

    def take_reading(self, reading: NodeReading) -> None:
        """Add a reading to what is remembered."""
        self._take(with_reading(self._record, reading, self._rules))

    def _pause(self) -> float:
        """Return how long to wait for the next reading: not long where something is decided by it."""
        soon = undecided(self._record, self._rules, self._sources.wall())
        return _SOON_SECONDS if soon else READ_SECONDS

    def _take(self, record: NodeRecord) -> None:
        """Remember it, and say what has changed."""
        self._record = record
        found = self.verdict
        for gpu in found.gpus:
            before = self._words.get(gpu.uuid)
            if before == gpu.word:
                continue
            self.epoch += 1
            reasons = "; ".join(f"{each.code}: {each.text}" for each in gpu.reasons) or "; ".join(gpu.notes)
            level = logging.INFO if before is None and not gpu.reasons else logging.WARNING
            _LOG.log(level, "GPU %s is %s%s", gpu.uuid, gpu.word, f": {reasons}" if reasons else "")
        words = MappingProxyType({gpu.uuid: gpu.word for gpu in found.gpus})
        if words != self._words:
            self._words = words
            self._changed.set()
            self._changed = asyncio.Event()

    async def change_after(self, epoch: int) -> None:
        """Wait until a verdict has changed since the changes were `epoch`."""
        while self.epoch == epoch:
            await self._changed.wait()

    # ------------------------------------------------------------------ events

    def tell(self, event: Event) -> None:
        """Take note of an event."""
        if event.uuid not in self._record.gpus:
            self._tally.unplaced()
            level = logging.DEBUG if (event.told, event.xid) in self._unplaced else logging.WARNING
            self._unplaced.add((event.told, event.xid))
            _LOG.log(level, "an event of a GPU that isn't known: %s %s", event.told, event.xid or "")
            self._soon.set()
            return
        self._tally.event(event)
        self._soon.set()
        after = with_event(self._record, event, self._rules)
        if after is self._record:  # there may be thousands of these a second
            return
        _LOG.info(
            "GPU %s: %s%s, by %s%s",
            *(event.uuid, event.told, f" {event.xid}" if event.xid else "", event.source),
            f": {event.text}" if event.text else "",
        )
        self._take(after)

    def _kernel_told(self, found: KernelXid) -> None:
        listed = [(each.bus_id, each.gpu) for each in self._sources.reader.listing.devices]
        known = [
            (each.bus_id, uuid) for uuid, each in self._record.gpus.items()
        ]  # one that is lost isn't listed
        uuid = next((uuid for bus, uuid in (*listed, *known) if address_of(bus) == found.address), "")
        age = time.clock_gettime(time.CLOCK_MONOTONIC) - found.since_boot
        at = self._sources.wall() - max(0.0, age)
        self.tell(Event(at=at, uuid=uuid, xid=found.xid, text=found.text, source=Source.KERNEL))

    async def _watch(self) -> None:
        """Be told of events by NVML, registered anew whenever the driver or its list of GPUs is new."""
        reader, nvml = self._sources.reader, self._sources.nvml
        lane = reader.lane("events of NVML")
        watched: object = None
        while True:
            if reader.state is not DriverState.OPEN:
                self.events_reason = reader.reason
                await asyncio.sleep(_AGAIN_SECONDS / 4)
                continue
            gpus = frozenset(device.uuid for device in reader.listing.devices if not device.parent)
            wanted = (reader.starts, gpus)
            try:
                if watched != wanted:
                    self.events_reason = "; ".join(await lane.call(nvml.watch, seconds=_WATCH_SECONDS))
                    watched = wanted
                told = await lane.call(lambda: nvml.next_events(_WAIT_MILLISECONDS), seconds=_WATCH_SECONDS)
            except (NvmlError, LaneBusy) as error:
                watched, self.events_reason = None, str(error)
                await asyncio.sleep(_NEVER_SECONDS if isinstance(error, NvmlUnsupported) else _AGAIN_SECONDS)
                continue
            for each in told:
                self.tell(
                    Event(
                        at=self._sources.wall(),
                        uuid=each.uuid,
                        told=each.told,
                        xid=each.xid,
                        source=Source.NVML,
                    )
                )

    # ------------------------------------------------------------------ what is kept

    @property
    def copy(self) -> str:
        """What controllers are to keep of what is remembered."""
        return self._copying.of(self._record, asyncio.get_running_loop().time())

    def restore(self, copy: str) -> None:
        """Take what a controller has kept, if that is asked for still."""
        if not self.asks:
            return
        self.asks = False
        if copy:
            _LOG.warning(
                "nothing was remembered of the GPUs, and a controller has kept what was found of them"
            )
        try:
            record = restored(self._record, copy, self._rules, self._sources.wall())
        except ValueError as error:
            _LOG.warning("what was remembered of the GPUs is lost: %s", error)
            record = self._record
        self._take(record)
        self.epoch += 1  # so that all controllers are told at once
        self._soon.set()

    async def _load(self) -> Kept:
        if self._sources.latches is None:
            return Kept()
        try:
            return await self._file_lane.call(self._sources.latches.load, seconds=_FILE_SECONDS)
        except LaneBusy as busy:
            self.file_reason = str(busy)
            _LOG.warning("what was remembered of the GPUs can't be read, so it is lost: %s", busy)
            return Kept(record=NodeRecord(lost=True))

    async def _save_at_the_end(self) -> None:
        """Write what isn't written yet, for a second at most: the file may hang."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SAVE_SECONDS):
                while self._file_lane.busy:  # noqa: ASYNC110 - by a write that the end has cut short; a lane tells nobody when it is free
                    await asyncio.sleep(_LAST_SAVE_SECONDS / 100)
                await self._save()

    async def _save(self) -> None:
        """Write what is remembered, if it has changed or its counters are old."""
        latches, now = self._sources.latches, asyncio.get_running_loop().time()
        essence = (*gist(self._record), self.asks)
        if latches is None or (essence == self._saved and now - self._saved_at < _SAVE_SECONDS):
            return
        kept = Kept(record=_lean(self._record), position=self._position(), epoch=self.epoch, asks=self.asks)
        try:
            await self._file_lane.call(partial(latches.save, kept), seconds=_FILE_SECONDS)
        except (OSError, LaneBusy) as error:
            self._tally.not_saved()
            if not self.file_reason:
                _LOG.warning("what is remembered of the GPUs can't be kept in %s: %s", latches.path, error)
            self.file_reason = str(error)
            return
        self.file_reason = ""
        self._saved, self._saved_at = essence, now

    def _position(self) -> Position | None:
        if self.kernel_log is None or self.kernel_log.sequence < 0:
            return None
        return Position(boot=self._sources.boot, sequence=self.kernel_log.sequence)


def _lean(record: NodeRecord) -> NodeRecord:
    """Return a record without the readings, which nothing follows from any more."""
    return replace(
        record,
        gpus=MappingProxyType({uuid: replace(gpu, reading=None) for uuid, gpu in record.gpus.items()}),
    )
