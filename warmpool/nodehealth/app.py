"""The node agent's process: from its options to a node that answers, until SIGTERM."""

import asyncio
import errno
import logging
import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from warmpool import listening
from warmpool.errors import StartFailed
from warmpool.lifeline import follow_parent
from warmpool.metric_families import expose_declared_only
from warmpool.nodehealth.account import Reading
from warmpool.nodehealth.client import MOST_PATH_BYTES
from warmpool.nodehealth.health_metrics import HealthCollector
from warmpool.nodehealth.health_service import HealthService, Parts
from warmpool.nodehealth.keeping import DeviceKeeper
from warmpool.nodehealth.kernel_log import KMSG
from warmpool.nodehealth.latches import Latches
from warmpool.nodehealth.metrics import NodeCollector, NodeMetrics
from warmpool.nodehealth.monitor import READ_SECONDS, HealthMonitor, Sources, boot_id
from warmpool.nodehealth.nvml import Nvml
from warmpool.nodehealth.pods import Pods
from warmpool.nodehealth.probe import HealthProbe
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.reader import Limits, Reader
from warmpool.nodehealth.readings import GpuReading
from warmpool.nodehealth.records import Rules
from warmpool.nodehealth.server import NodeApi
from warmpool.nodehealth.service import MemoryService
from warmpool.nodehealth.telling import Teller, Telling

_LOG = logging.getLogger(__name__)

POD_LOGS = Path("/var/log/pods")
_CLOSE_SECONDS = 1.0
_SHOWN_SECONDS = 5.0
_OWNER_ONLY, _OWNER_AND_GROUP = 0o600, 0o660


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgentOptions:
    """How a node agent runs.

    Attributes:
        socket: path of its Unix socket.
        group: id of the group that may use the socket beside its owner; None: its owner alone.
        host, port: where it listens on TCP; port None: it doesn't.
        token: what callers on TCP have to send; never empty where there is a port.
        kubelet: the kubelet's pod-resources socket; None: there is no kubelet.
        pod_logs: the folder with the folders of pods' logs, whose names have the pods' UIDs.
        limits: how long things may take.
        rules: what verdicts on GPUs follow.
        latches: the file in which what is remembered of GPUs is kept; None: it isn't.
        kmsg: the kernel's log; None: it isn't read.
        telling: which controllers are told of the GPUs' health; None: none are.
        keep_devices: hold the GPUs' device files open, so that they stay initialised without persistence mode.
    """

    socket: Path
    group: int | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    token: str = ""
    kubelet: Path | None = None
    pod_logs: Path = POD_LOGS
    limits: Limits = Limits()  # noqa: RUF009 - it can't be changed
    rules: Rules = Rules()  # noqa: RUF009 - it can't be changed
    latches: Path | None = None
    kmsg: Path | None = KMSG
    telling: Telling | None = None
    keep_devices: bool = True


class NoGpu(Exception):
    """There is no GPU on this machine, or none that NVML can be asked about."""


def run(options: NodeAgentOptions, nvml: Nvml) -> None:
    """Run a node agent until SIGTERM or SIGINT.

    Raises:
        NoGpu: there is no GPU here; the message says what NVML says.
        StartFailed: it can't listen where it should.
    """
    expose_declared_only()
    follow_parent(os.environ)
    asyncio.run(serve(options, nvml))


async def serve(options: NodeAgentOptions, nvml: Nvml) -> None:
    """Run a node agent in the running event loop until SIGTERM or SIGINT.

    Raises:
        NoGpu, StartFailed: see `run`.
    """
    ending, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        await serve_until(options, nvml, ProcFiles(), ending)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def serve_until(options: NodeAgentOptions, nvml: Nvml, files: ProcFiles, ending: asyncio.Event) -> None:
    """Run a node agent until `ending` is set.

    Raises:
        NoGpu, StartFailed: see `run`.
    """
    metrics = NodeMetrics()
    reader = Reader(nvml, files, metrics, options.limits)
    pods = Pods(options.kubelet, options.pod_logs, lambda: reader.listing.devices)
    service = MemoryService(reader, pods, files, options.limits)
    monitor = _monitor(options, nvml, reader, pods, metrics)
    health = HealthService(
        Parts(monitor=monitor, reader=reader, pods=pods, memory=service, limits=options.limits)
    )
    metrics.registry.register(
        NodeCollector(reader, pods, lambda: _recent(reader), with_kubelet=options.kubelet is not None)
    )
    metrics.registry.register(
        HealthCollector(
            lambda: monitor.verdict,
            lambda: _fresh(monitor),
            lambda: {name: not reason for name, reason in health.sources.items()},
        )
    )
    api = NodeApi(service, health, reader, metrics, options.token)
    async with AsyncExitStack() as stack:
        stack.callback(service.close)
        await _listen(stack, options, api.application())
        none = False
        async with asyncio.TaskGroup() as tasks:
            parts = [tasks.create_task(each.run()) for each in (reader, pods, monitor)]
            if options.keep_devices:
                keeper = DeviceKeeper(lambda: reader.listing.devices, reader.lane, reader.drop)
                parts.append(tasks.create_task(_keep(keeper, reader)))
            if options.telling is not None:
                parts.append(tasks.create_task(Teller(options.telling, monitor, health).run()))
            first = [tasks.create_task(ending.wait()), tasks.create_task(reader.settled.wait())]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            none = reader.settled.is_set() and reader.without_gpu
            if not none:
                await ending.wait()
            for part in (*parts, *first):
                part.cancel()
    if none:
        raise NoGpu(reader.reason or "NVML lists no GPU")
    _LOG.info("node agent is ending")


async def _keep(keeper: DeviceKeeper, reader: Reader) -> None:
    """Keep devices initialised from when they have been listed for the first time on."""
    await reader.settled.wait()
    await keeper.run()


def _monitor(
    options: NodeAgentOptions, nvml: Nvml, reader: Reader, pods: Pods, metrics: NodeMetrics
) -> HealthMonitor:
    boot = boot_id()
    sources = Sources(
        probe=HealthProbe(nvml, reader, pods.spans, boot),
        nvml=nvml,
        reader=reader,
        boot=boot,
        kmsg=options.kmsg,
        latches=None if options.latches is None else Latches(options.latches),
        copied=options.telling is not None,
    )
    return HealthMonitor(sources, options.rules, metrics.health)


def _fresh(monitor: HealthMonitor) -> list[GpuReading]:
    """Return the readings of GPUs that answered the last time or the one before."""
    record = monitor.record
    return [
        gpu.reading
        for gpu in record.gpus.values()
        if gpu.reading is not None and (gpu.answered_at or 0.0) > record.at - 2 * READ_SECONDS
    ]


def _recent(reader: Reader) -> Reading | None:
    last = reader.last
    young = last is not None and asyncio.get_running_loop().time() - last.began_at < _SHOWN_SECONDS
    return last if young else None


# ---------------------------------------------------------------------- listeners


async def _listen(stack: AsyncExitStack, options: NodeAgentOptions, app: web.Application) -> None:
    listeners = [stack.enter_context(unix_listener(options.socket, options.group))]
    _LOG.info("node agent listens on unix://%s", options.socket)
    if options.port is not None:
        listeners.append(_tcp_listener(options.host, options.port))
        _LOG.info("node agent listens on http://%s:%d", *listeners[-1].getsockname()[:2])
    runner = listening.runner(app, _CLOSE_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    for listener in listeners:
        await listening.start(runner, listener)


def _tcp_listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise StartFailed(f"{host}:{port} can't be listened on: {error.strerror or error}") from error


@contextmanager
def unix_listener(path: Path, group: int | None) -> Iterator[socket.socket]:
    """Listen on a Unix socket, in place of one that a killed node agent has left; it is gone when the context is left.

    Args:
        path: where.
        group: id of the group that may connect beside the owner; None: the owner alone may.

    Raises:
        StartFailed: it can't be made there, or another node agent listens there.
    """
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise StartFailed(f"{path}: the path of a Unix socket has {MOST_PATH_BYTES} bytes at most")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made = _bind(listener, path, group)
    except OSError as error:
        listener.close()
        raise StartFailed(f"{path} can't be listened on: {error.strerror or error}") from error
    except StartFailed:
        listener.close()
        raise
    try:
        yield listener
    finally:
        listener.close()
        with suppress(OSError):
            if _identity(path) == made:
                path.unlink()


def _bind(listener: socket.socket, path: Path, group: int | None) -> tuple[int, int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(path)
    mask = os.umask(0o777 & ~_OWNER_ONLY)  # nobody gets in before it is known who may
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(_OWNER_AND_GROUP)
    listener.listen()
    return _identity(path)


def _remove_left(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartFailed(f"{path} is there and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(str(path))
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:
                raise
            path.unlink()
            return
    raise StartFailed(f"another node agent listens on {path}")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
