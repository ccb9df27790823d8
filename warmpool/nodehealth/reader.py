"""Reading all GPUs, once for all who ask at the same time.

Each GPU has a lane, so one that hangs delays nobody: it is unknown, and the others are read. The driver has a lane too, for
what concerns the library: initialising it, closing it, listing the devices. Whoever asks may say how old an answer may be, and
waits for a reading that is young enough, with everybody else who does.

A library that says it is closed, as after a reload of the driver, is initialised again, with pauses of 0.1 to 30 s. It is never
closed while a call hangs in it.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol

from warmpool.nodehealth.account import DeviceReading, Reading
from warmpool.nodehealth.lanes import HANG_SECONDS, Lane, LaneBusy
from warmpool.nodehealth.nvml import (
    Device,
    DeviceGone,
    DeviceMemory,
    GpuProcess,
    Listing,
    Nvml,
    NvmlAbsent,
    NvmlClosed,
    NvmlError,
    NvmlOutdated,
)
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.processes import Look, Unseen

_LOG = logging.getLogger(__name__)

LIST_SECONDS = 60.0
"""How old the list of devices may become: MIG devices come and go."""
_START_SECONDS = 60.0  # a driver that nobody held open brings its GPUs up first, one by one
_RETRY_SECONDS = (0.1, 1.0, 2.0, 5.0, 10.0, 30.0)
_SOONEST_SECONDS = 0.25  # between two looks whether nothing hangs any more, or two listings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, all of them parts of the time in which a question is answered.

    Attributes:
        answer_seconds: by when there is an answer, whatever is known by then.
        hang_seconds: when a call counts as hanging.
    """

    answer_seconds: float = 0.05
    hang_seconds: float = HANG_SECONDS

    @property
    def gpu_seconds(self) -> float:
        """How long one GPU may take within a reading: all its calls take 0.5 ms on an H200 with driver 580."""
        return 0.5 * self.answer_seconds

    @property
    def look_seconds(self) -> float:
        """How long finding out who the processes are may take."""
        return 0.3 * self.answer_seconds

    @property
    def made_seconds(self) -> float:
        """By when an answer is made: what is left is for HTTP."""
        return 0.9 * self.answer_seconds


class DriverState(StrEnum):
    """How NVML is."""

    STARTING = "Starting"
    """It is being initialised for the first time."""
    OPEN = "Open"
    """It answers, as far as is known."""
    CLOSED = "Closed"
    """It can't be used at present; it is tried again."""
    OUTDATED = "Outdated"
    """The driver was replaced, and this process has the old library: it has to be started anew."""


class Outcome(StrEnum):
    """How asking a GPU ends."""

    DONE = "Done"
    """With an answer."""
    BUSY = "Busy"
    """With none in time."""
    FAILED = "Failed"
    """With an error of NVML's."""


class Tally(Protocol):
    """Is told what happens, to count it."""

    def read(self, seconds: float) -> None:
        """Count a reading, and how long it took."""

    def called(self, outcome: Outcome) -> None:
        """Count that a GPU was asked."""

    def hung(self) -> None:
        """Count a call that hangs."""

    def started(self) -> None:
        """Count that the library was initialised."""


class TooSlow(Exception):
    """No reading that is young enough came in time; the message says what is waited for."""


@dataclass(slots=True)
class _Driver:
    """The library."""

    state: DriverState = DriverState.STARTING
    reason: str = "NVML is being initialised"
    absent: bool = False
    listing: Listing = field(default_factory=Listing)
    listed_at: float = float("-inf")
    retry_at: float = float("-inf")
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of asking one device."""

    reading: DeviceReading
    error: NvmlError | None = None


class Reader:
    """Reads the node's GPUs.

    Args:
        nvml: where they are.
        files: where their processes are.
        tally: what counts.
        limits: how long things may take.
    """

    def __init__(self, nvml: Nvml, files: ProcFiles, tally: Tally, limits: Limits) -> None:
        self._nvml = nvml
        self._files = files
        self._tally = tally
        self._limits = limits
        self._make_lane = partial(Lane, hung=tally.hung, hang_seconds=limits.hang_seconds)
        self._driver_lane = self._make_lane("NVML")
        self._files_lane = self._make_lane("/proc")
        self._gpu_lanes: dict[str, Lane] = {}
        self._others: list[Lane] = []
        self._driver = _Driver()
        self._opened = False
        self._wanted = asyncio.Event()
        self._published = asyncio.Event()
        self._last: Reading | None = None
        self.starts = 0
        """How often the library was initialised."""
        self.settled = asyncio.Event()
        """Set once it is known whether there is a driver."""

    @property
    def state(self) -> DriverState:
        """How NVML is."""
        return self._driver.state

    @property
    def reason(self) -> str:
        """Why NVML can't be used; empty if it can."""
        return self._driver.reason

    @property
    def without_gpu(self) -> bool:
        """Whether there is no NVML, no driver, or no GPU on this machine, as far as is known."""
        found = self._driver
        nobody = not found.listing.devices and not found.listing.unreadable
        return found.absent or (found.state is DriverState.OPEN and nobody)

    @property
    def listing(self) -> Listing:
        """The devices, as last listed."""
        return self._driver.listing

    @property
    def last(self) -> Reading | None:
        """The last reading, however old."""
        return self._last

    @property
    def hanging(self) -> Sequence[str]:
        """Names of what hangs at present."""
        return [lane.name for lane in self._lanes if lane.hangs]

    def lane(self, name: str) -> Lane:
        """Return a lane for somebody else's calls to the library, which isn't initialised anew while one is under way.

        Args:
            name: what is asked there.
        """
        lane = Lane(
            name, self._tally.hung
        )  # a look at a GPU's health, or waiting for events, takes longer than most calls
        self._others.append(lane)
        return lane

    def drop(self, lane: Lane) -> None:
        """Let a lane end that `lane` has returned, unless a call is under way there; then it is kept."""
        if not lane.busy:
            self._others.remove(lane)
            lane.close()

    async def read(self, *, max_age_seconds: float, seconds: float) -> Reading:
        """Return a reading that is young enough.

        Args:
            max_age_seconds: how long ago it may have begun.
            seconds: how long to wait for it.

        Raises:
            TooSlow: there was none in time.
        """
        oldest = asyncio.get_running_loop().time() - max_age_seconds
        try:
            async with asyncio.timeout(seconds):
                while self._last is None or self._last.began_at < oldest:
                    self._wanted.set()
                    await self._published.wait()
        except TimeoutError:
            if (
                self._last is None or self._last.began_at < oldest
            ):  # a busy loop may have the answer all the same
                raise TooSlow(self._driver.reason or f"NVML has not answered for {seconds:.2f} s") from None
        return self._last

    def unread(self, reason: str) -> Reading:
        """Return what a reading says where nothing could be read: all devices that are listed, and why they are unknown."""
        devices = tuple(DeviceReading(device=each, reason=reason) for each in self._driver.listing.devices)
        now = asyncio.get_running_loop().time()
        return Reading(began_at=now, devices=devices, look={}, reason=reason)

    async def run(self) -> None:
        """Read when asked, and keep the driver initialised, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._run(tasks)
        finally:
            for lane in self._lanes:
                lane.close()

    async def _run(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._may_start(loop.time()):
                await self._start()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_start(loop.time())):
                    await self._wanted.wait()
            if not self._wanted.is_set():
                continue
            self._wanted.clear()
            if self._listing_is_old(loop.time()):
                tasks.create_task(self._list_again())
            self._publish(await self._read(loop))

    @property
    def _lanes(self) -> Iterable[Lane]:
        return (self._driver_lane, self._files_lane, *self._gpu_lanes.values(), *self._others)

    def _publish(self, reading: Reading) -> None:
        self._last = reading
        published, self._published = self._published, asyncio.Event()
        published.set()

    # ------------------------------------------------------------------ the driver

    def _may_start(self, now: float) -> bool:
        if self._driver.state not in {DriverState.STARTING, DriverState.CLOSED}:
            return False
        return now >= self._driver.retry_at and not any(lane.busy for lane in self._lanes)

    def _next_start(self, now: float) -> float | None:
        """Return when to look whether it can be started; None while it needs no start."""
        if self._driver.state in {DriverState.OPEN, DriverState.OUTDATED}:
            return None
        busy = any(lane.busy for lane in self._lanes)
        return max(self._driver.retry_at, now + _SOONEST_SECONDS if busy else now)

    async def _start(self) -> None:
        try:
            listing = await self._driver_lane.call(self._open, seconds=_START_SECONDS)
        except (NvmlError, LaneBusy) as error:
            self._driver.absent = isinstance(error, NvmlAbsent | NvmlClosed)
            self._closed(error)
        else:
            self._driver = _Driver(DriverState.OPEN, "")
            self.starts += 1
            self._list(listing)
            self._tally.started()
            _LOG.info("NVML is open; devices: %s", ", ".join(d.uuid for d in listing.devices) or "none")
        self.settled.set()

    def _open(self) -> Listing:
        """Initialise the library, after closing it where it was open; in the driver's lane."""
        if self._opened:
            with suppress(NvmlError):  # the driver that it belonged to is gone
                self._nvml.stop()
        self._opened = False
        self._nvml.start()
        self._opened = True
        return self._nvml.devices()

    def _closed(self, error: NvmlError | LaneBusy) -> None:
        found, now = self._driver, asyncio.get_running_loop().time()
        found.state = DriverState.OUTDATED if isinstance(error, NvmlOutdated) else DriverState.CLOSED
        found.reason = str(error)
        found.retry_at = now + _RETRY_SECONDS[min(found.failures, len(_RETRY_SECONDS) - 1)]
        found.failures += 1
        _LOG.log(logging.WARNING if found.failures == 1 else logging.DEBUG, "NVML can't be used: %s", error)

    def _list(self, listing: Listing) -> None:
        """Take a list of devices over."""
        for reason in listing.unreadable:
            if reason not in self._driver.listing.unreadable:
                _LOG.warning("%s", reason)
        self._driver.listing, self._driver.listed_at = listing, asyncio.get_running_loop().time()
        gpus = {device.gpu for device in listing.devices}
        for uuid in [uuid for uuid, lane in self._gpu_lanes.items() if uuid not in gpus and not lane.busy]:
            self._gpu_lanes.pop(uuid).close()

    def _listing_is_old(self, now: float) -> bool:
        if self._driver.state is not DriverState.OPEN or self._driver_lane.busy:
            return False
        return now - self._driver.listed_at > LIST_SECONDS

    async def _list_again(self) -> None:
        """List the devices anew, beside the readings; until it is done the devices that are known are read."""
        try:
            self._list(await self._driver_lane.call(self._nvml.devices, seconds=_START_SECONDS))
        except LaneBusy as busy:
            _LOG.warning("devices can't be listed: %s", busy)
        except (NvmlClosed, NvmlOutdated) as error:
            self._closed(error)
        except NvmlError as error:
            _LOG.warning("devices can't be listed: %s", error)
            self._driver.listed_at = asyncio.get_running_loop().time()

    # ------------------------------------------------------------------ a reading

    async def _read(self, loop: asyncio.AbstractEventLoop) -> Reading:
        began_at, since_boot = loop.time(), self._files.since_boot()
        if self._driver.state is not DriverState.OPEN:
            return self.unread(self._driver.reason)
        devices = self._driver.listing.devices
        async with asyncio.TaskGroup() as tasks:
            asking = [
                tasks.create_task(self._ask_gpu(gpu, [each for each in devices if each.parent == gpu.uuid]))
                for gpu in devices
                if not gpu.parent
            ]
        readings = tuple(reading for task in asking for reading in task.result())
        look, sees_all = await self._look(readings, since_boot)
        self._tally.read(loop.time() - began_at)
        return Reading(
            began_at=began_at,
            devices=readings,
            look=look,
            sees_all=sees_all,
            reason=self._driver.reason,
        )

    async def _ask_gpu(self, gpu: Device, parts: Sequence[Device]) -> list[DeviceReading]:
        """Read one GPU and its MIG devices."""
        if gpu.uuid not in self._gpu_lanes:
            self._gpu_lanes[gpu.uuid] = self._make_lane(gpu.uuid)
        work = partial(_ask_devices, self._nvml, gpu, parts)
        try:
            asked = await self._gpu_lanes[gpu.uuid].call(work, seconds=self._limits.gpu_seconds)
        except LaneBusy as busy:
            self._tally.called(Outcome.BUSY)
            return [DeviceReading(device=each, reason=str(busy)) for each in (gpu, *parts)]
        errors = [each.error for each in asked if each.error is not None]
        self._tally.called(Outcome.FAILED if errors else Outcome.DONE)
        for error in errors:
            if isinstance(error, NvmlClosed | NvmlOutdated) and self._driver.state is DriverState.OPEN:
                self._closed(error)
            elif isinstance(error, DeviceGone):
                self._driver.listed_at = min(
                    self._driver.listed_at,
                    asyncio.get_running_loop().time() - LIST_SECONDS + _SOONEST_SECONDS,
                )
        return [each.reading for each in asked]

    async def _look(self, readings: Sequence[DeviceReading], since_boot: float) -> tuple[Look, bool]:
        pids = {process.pid for reading in readings for process in reading.processes or ()}

        def work() -> tuple[Look, bool]:
            return self._files.look(pids, before=since_boot), self._files.sees_all()

        try:
            return await self._files_lane.call(work, seconds=self._limits.look_seconds)
        except LaneBusy:
            return dict.fromkeys(pids, Unseen.UNTOLD), False


# ---------------------------------------------------------------------- in a GPU's lane


def _ask_devices(nvml: Nvml, gpu: Device, parts: Sequence[Device]) -> list[_Asked]:
    """Read a GPU and its MIG devices, which together have the processes of a GPU in MIG mode."""
    of_parts = [_ask_device(nvml, part) for part in parts]
    if not gpu.partitioned:
        return [_ask_device(nvml, gpu), *of_parts]
    processes, memory = [each.reading.processes for each in of_parts], _ask_memory(nvml, gpu)
    reason = next((each.reading.reason for each in of_parts if each.reading.reason), "")
    whole = DeviceReading(
        device=gpu,
        memory=memory if isinstance(memory, DeviceMemory) else None,
        processes=_together([each for each in processes if each is not None])
        if None not in processes
        else None,
        reason=str(memory) if isinstance(memory, NvmlError) else reason,
    )
    return [_Asked(whole, memory if isinstance(memory, NvmlError) else None), *of_parts]


def _ask_device(nvml: Nvml, device: Device) -> _Asked:
    memory = _ask_memory(nvml, device)
    if isinstance(memory, NvmlError):
        return _Asked(DeviceReading(device=device, reason=str(memory)), memory)
    try:
        processes = nvml.processes(device.uuid)
    except NvmlError as error:
        return _Asked(DeviceReading(device=device, memory=memory, reason=str(error)), error)
    return _Asked(DeviceReading(device=device, memory=memory, processes=processes))


def _ask_memory(nvml: Nvml, device: Device) -> DeviceMemory | NvmlError:
    try:
        return nvml.memory(device.uuid)
    except NvmlError as error:
        return error


def _together(lists: Sequence[Sequence[GpuProcess]]) -> tuple[GpuProcess, ...]:
    """Put the processes of MIG devices together; one that is on several holds their sum."""
    held: dict[int, int | None] = {}
    for process in (process for processes in lists for process in processes):
        before = held.get(process.pid, 0)
        known = before is not None and process.held_bytes is not None
        held[process.pid] = (before or 0) + (process.held_bytes or 0) if known else None
    return tuple(GpuProcess(pid, held[pid]) for pid in sorted(held))
