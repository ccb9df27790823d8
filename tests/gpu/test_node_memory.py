"""The node agent over a real driver and the kernel's own /proc: who holds what, in pods, in workers, in PID namespaces."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.app import NodeAgentOptions, serve_until
from warmpool.nodehealth.client import DeviceTotals, NodeAgent, NoMemory, SeatMemory
from warmpool.nodehealth.local import local_node_agent
from warmpool.nodehealth.nvml import NvmlError, driver
from warmpool.nodehealth.proc_files import ProcFiles

ROOT = Path(__file__).resolve().parents[2]
HOLDER = ROOT / "tests/fakes/cuda_holder.py"
GIB = 2**30
WAIT_SECONDS = 15.0
CONTAINER = "0123456789abcdef" * 4
PODS = ("9fb3ac5b-5a36-4a91-b9a1-0b1a2c7c5a11", "11111111-2222-3333-4444-555555555555")
CGROUPS = Path("/sys/fs/cgroup")
NEW_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


QUESTION = """
import socket, sys
its = socket.socket(socket.AF_UNIX)
its.connect(sys.argv[1])
its.sendall(b"GET /v1/memory?gpu=0&maxAgeMilliseconds=0 HTTP/1.0\\r\\n\\r\\n")
print(its.makefile().read().partition("\\n\\n")[2])
"""


def _no_gpu() -> str:
    try:
        nvml = driver()
        nvml.start()
    except NvmlError as error:
        return str(error)
    nvml.stop()
    return "" if ProcFiles().sees_all() else "this isn't the initial PID namespace"


REASON = _no_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=f"needs a GPU: {REASON}")]


def say(text: str) -> None:
    """Tell a figure; `pytest -s` shows it."""
    sys.stdout.write(text + "\n")


class Holder:
    """A process that holds device memory."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self._done()

    def _done(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        self._done()


@contextmanager
def holding(*options: str, before: tuple[str, ...] = ()) -> Iterator[Holder]:
    with subprocess.Popen(
        [*before, sys.executable, str(HOLDER), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:  # it ends when its stdin is closed
        yield Holder(process)


@contextmanager
def pod_cgroup(uid: str) -> Iterator[tuple[str, ...]]:
    """Make a pod's cgroup; yield what starts a program in it."""
    path = CGROUPS / "kubepods" / "burstable" / f"pod{uid}" / CONTAINER
    try:
        path.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        yield ("sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "sh")
    finally:
        until = time.monotonic() + WAIT_SECONDS
        while (path / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        for folder in (path, path.parent):
            folder.rmdir()


@asynccontextmanager
async def node_agent(directory: Path) -> AsyncIterator[Path]:
    ending, path = asyncio.Event(), directory / "node.sock"
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(serve_until(NodeAgentOptions(socket=path), driver(), ProcFiles(), ending))
        try:
            await until_open(path)
            yield path
        finally:
            ending.set()
            await running


async def until_open(path: Path) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while (await ask(path, "/healthz")).get("nvml") != "Open":
            await asyncio.sleep(0.01)


async def ask(path: Path, url: str) -> dict[str, Any]:
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            session.get(f"http://node{url}") as response,
        ):
            return dict(await response.json())
    except aiohttp.ClientConnectionError:
        return {}


@asynccontextmanager
async def client(path: Path) -> AsyncIterator[Callable[[], Any]]:
    agent = NodeAgent(f"unix://{path}", NoMemory("there is none"))

    async def read() -> SeatMemory:
        return await agent.read(["0"], deadline=Deadline.after(1))

    try:
        yield read
    finally:
        await agent.close()


async def test_what_a_process_takes_and_gives_back_is_seen_at_once(tmp_path: Path) -> None:
    with holding() as holder:
        async with node_agent(tmp_path) as path, client(path) as read:
            empty = await read()
            assert (empty.verified, empty.reason) == (True, "")
            context = empty.held_by(holder.pid)
            assert context > 100 * 2**20
            holder.order(f"take {4 * GIB}")
            assert (await read()).held_by(holder.pid) - context == 4 * GIB
            holder.order("give")
            assert (await read()).held_by(holder.pid) == context


async def test_what_a_worker_holds_is_its_engines(tmp_path: Path) -> None:
    with holding("--worker") as holder:
        async with node_agent(tmp_path) as path, client(path) as read:
            holder.order(f"take {GIB}")
            memory = await read()
            assert memory.held_by(holder.pid) > GIB
            assert holder.pid not in {
                each["pid"]
                for gpu in (await ask(path, "/v1/memory?gpu=0"))["gpus"]
                for each in gpu["processes"]
            }


async def test_several_processes_add_up_to_what_is_in_use(tmp_path: Path) -> None:
    with holding() as one, holding() as two, holding() as three, holding() as four:
        async with node_agent(tmp_path) as path, client(path) as read:
            for number, holder in enumerate((one, two, three, four), start=1):
                holder.order(f"take {number * GIB}")
            memory = await read()
            assert memory.verified, memory.reason
            held = [memory.held_by(each.pid) for each in (one, two, three, four)]
            assert [(each or 0) - (held[0] or 0) for each in held] == [0, GIB, 2 * GIB, 3 * GIB]
            (gpu,) = (await ask(path, "/v1/memory?gpu=0"))["gpus"]
            say(f"unaccounted with 4 processes: {gpu['unaccountedBytes'] / 2**20:.1f} MiB")


async def test_a_process_of_another_pid_namespace_is_known_by_both_its_ids(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    with holding(before=NEW_PIDS) as holder:
        async with node_agent(tmp_path) as path, client(path) as read:
            (gpu,) = (await ask(path, "/v1/memory?gpu=0"))["gpus"]
            (process,) = gpu["processes"]
            assert (process["nsPid"], process["pid"] != holder.pid) == (1, True)
            assert (await read()).held_by(holder.pid) > 0


async def asked(path: Path, before: tuple[str, ...]) -> dict[str, Any]:
    """Ask as a process that is started in a pod, in a PID namespace, or both."""
    asking = await asyncio.create_subprocess_exec(
        *(*before, sys.executable, "-c", QUESTION, str(path)), stdout=subprocess.PIPE
    )
    return dict(json.loads((await asking.communicate())[0]))


async def test_pods_are_told_apart_by_the_kernels_cgroups(tmp_path: Path) -> None:
    """The caller is a process in the first pod, with a PID namespace of its own; the other pod is one sum to it."""
    with (
        pod_cgroup(PODS[0]) as in_mine,
        pod_cgroup(PODS[1]) as in_yours,
        holding(before=(*in_mine, *NEW_PIDS)) as mine,
        holding(before=in_yours) as yours,
    ):
        mine.order(f"take {GIB}")
        yours.order(f"take {2 * GIB}")
        async with node_agent(tmp_path) as path:
            answer = await asked(path, (*in_mine, *NEW_PIDS))
    (gpu,) = answer["gpus"]
    assert (answer["verified"], answer["complete"]) == (True, True)
    (process,) = gpu["processes"]
    assert (process["nsPid"], process["pod"], process["container"]) == (1, PODS[0], CONTAINER)
    assert gpu["othersBytes"] - process["bytes"] == GIB
    assert PODS[1] not in str(answer)


@contextmanager
def elsewhere() -> Iterator[tuple[str, ...]]:
    """Make a PID namespace; yield what starts a program in it."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("needs unshare and nsenter")
    with subprocess.Popen([*NEW_PIDS, "sleep", "600"]) as outside:
        try:
            until = time.monotonic() + WAIT_SECONDS
            while not (inside := psutil.Process(outside.pid).children()) and time.monotonic() < until:
                time.sleep(0.01)
            yield ("nsenter", "--target", str(inside[0].pid), "--pid", "--mount", f"--wd={ROOT}")
        finally:
            outside.kill()


@asynccontextmanager
async def node_agent_in(there: tuple[str, ...], directory: Path) -> AsyncIterator[Path]:
    path = directory / "node.sock"
    agent = await asyncio.create_subprocess_exec(
        *(*there, sys.executable, "-m", "warmpool.nodehealth", "--socket", str(path))
    )
    try:
        await until_open(path)
        yield path
    finally:
        agent.kill()  # nsenter, that is; the node agent is killed with its namespace
        await agent.wait()


async def test_a_node_agent_in_a_pid_namespace_of_its_own_does_not_take_an_empty_list_for_nobody(
    tmp_path: Path,
) -> None:
    """The driver lists nobody to it, without an error. What tells is that memory in use isn't accounted for."""
    with elsewhere() as there, holding() as holder:
        holder.order(f"take {GIB}")
        async with node_agent_in(there, tmp_path) as path:
            answer = await asked(path, there)
            async with client(path) as read:
                from_outside = await read()
    (gpu,) = answer["gpus"]
    assert (answer["verified"], gpu["processes"]) == (False, [])
    assert "held by nobody whom the driver lists" in answer["reason"]
    assert gpu["usedBytes"] > GIB
    assert from_outside.held_by(holder.pid) is None
    assert "who asks can't be identified" in from_outside.reason


async def test_a_node_agent_that_shares_its_pid_namespace_with_all_on_the_gpu_verifies(
    tmp_path: Path,
) -> None:
    """As with everything in one container: the driver names processes as this namespace does, and they add up."""
    with elsewhere() as there, holding(before=there) as holder:
        holder.order(f"take {GIB}")
        async with node_agent_in(there, tmp_path) as path:
            answer = await asked(path, there)
    (gpu,) = answer["gpus"]
    assert (answer["verified"], answer["reason"]) == (True, "")
    assert [each["bytes"] > GIB for each in gpu["processes"]] == [True]


async def test_a_local_process_has_a_node_agent_that_comes_back_and_goes_with_it(tmp_path: Path) -> None:
    with holding() as holder:
        async with local_node_agent(tmp_path) as address:
            path = Path(address.removeprefix("unix://"))
            await until_open(path)
            async with client(path) as read:
                assert (await read()).held_by(holder.pid) > 0
            (child,) = [
                each for each in psutil.Process().children() if "warmpool.nodehealth" in each.cmdline()
            ]
            child.kill()
            child.wait(WAIT_SECONDS)
            await until_open(path)
            async with client(path) as read:
                assert (await read()).held_by(holder.pid) > 0
        assert not path.exists()  # noqa: ASYNC240
    assert not [each for each in psutil.Process().children() if "warmpool.nodehealth" in each.cmdline()]


async def test_without_a_node_agent_there_are_totals(tmp_path: Path) -> None:
    totals = DeviceTotals(driver)
    with holding() as holder:
        holder.order(f"take {GIB}")
        found = await totals.read(["0"], deadline=Deadline.after(WAIT_SECONDS))
    assert not found.verified
    assert found.used_bytes is not None
    assert found.used_bytes > GIB
    assert found.held_by(holder.pid) is None
    await totals.close()


async def test_answers_come_in_time(tmp_path: Path) -> None:
    took: list[float] = []
    with holding() as holder:
        async with node_agent(tmp_path) as path, client(path) as read:
            assert (await read()).held_by(holder.pid)
            for _ in range(300):
                began = time.perf_counter()
                assert (await read()).verified
                took.append(time.perf_counter() - began)
            alone = sorted(took)

            async def one() -> float:
                began = time.perf_counter()
                assert (await read()).verified
                return time.perf_counter() - began

            together = sorted(
                [each for _ in range(10) for each in await asyncio.gather(*(one() for _ in range(16)))]
            )
    for name, each in (("one caller", alone), ("16 callers", together)):
        p50, p99 = each[len(each) // 2], each[len(each) * 99 // 100]
        say(f"{name}: p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms, most {each[-1] * 1000:.2f} ms")
    assert alone[len(alone) * 99 // 100] < 0.05
