"""Engine processes: ports, logs, ends."""

import asyncio
import socket
import sys
from pathlib import Path

import psutil
import pytest

from warmpool.agent.processes import EngineProcess, Ports
from warmpool.errors import StartFailed

FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
loner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("loner", loner.pid, flush=True)
while True:
    signal.pause()
"""


async def start(directory: Path, *command: str, **environment: str) -> EngineProcess:
    return await EngineProcess.start(
        list(command), environment, Ports.free("127.0.0.1"), directory / "logs/engine.log"
    )


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    ports = Ports(host="127.0.0.1", public=1, control=2)
    command = ["engine", "--url={host}:{port}", "{controlPort}", '{"a": {}}', "{other}"]
    assert ports.fill_in(command) == ["engine", "--url=127.0.0.1:1", "2", '{"a": {}}', "{other}"]
    assert (ports.public_url, ports.control_url) == ("http://127.0.0.1:1", "http://127.0.0.1:2")


def test_free_ports_differ_and_taken_ones_are_seen() -> None:
    ports = Ports.free("127.0.0.1")
    assert ports.public != ports.control
    assert not ports.taken()
    with socket.create_server(("127.0.0.1", ports.control)):
        assert ports.taken()


async def test_the_end_is_told_with_the_last_lines_of_this_start_alone(tmp_path: Path) -> None:
    first = await start(tmp_path, sys.executable, "-c", "print('of the first start')")
    assert "exited with status 0; log: of the first start" in await first.wait()
    script = "import os, sys; print(os.environ['A'], flush=True); sys.exit('went wrong')"
    second = await start(tmp_path, sys.executable, "-c", script, A="b")
    told = await second.wait()
    assert told.endswith("exited with status 1; log: b | went wrong")
    assert second.exited
    assert not await second.lost_its_port()


async def test_what_an_engine_logs_of_its_start_is_found_in_the_log_of_this_start(tmp_path: Path) -> None:
    script = "print('INFO Loading weights took {} seconds'); print('and so on')"
    for seconds in ("1.5", "2.5"):
        process = await start(tmp_path, sys.executable, "-c", script.format(seconds))
        await process.wait()
        assert await process.telling_lines() == [f"INFO Loading weights took {seconds} seconds"]
    (tmp_path / "logs/engine.log").unlink()
    assert await process.telling_lines() == ()


async def test_stopping_ends_the_whole_family_even_those_who_refuse_or_left_the_group(tmp_path: Path) -> None:
    process = await start(tmp_path, sys.executable, "-c", FAMILY)
    log = tmp_path / "logs/engine.log"
    async with asyncio.timeout(20):
        while "\nloner " not in (text := log.read_text()):
            await asyncio.sleep(0.01)
    loner = int(text.split("\nloner ")[-1])
    assert await process.owns(loner)
    assert not await process.owns(1)
    await process.stop(grace_seconds=0.1)
    assert "killed by SIGKILL" in await process.wait()
    async with asyncio.timeout(20):
        while psutil.pid_exists(loner) and psutil.Process(loner).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
    await process.stop(grace_seconds=0.1)  # twice is once


async def test_what_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="command: no-such-engine can't be started"):
        await start(tmp_path, "no-such-engine")
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    (tmp_path / "logs").write_text("a file where a directory should be")
    with pytest.raises(StartFailed, match="logDirectory: "):
        await start(tmp_path, sys.executable)


async def test_a_long_log_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs/engine.log").open("wb") as log:
        log.truncate(17 * 2**20)
    process = await start(tmp_path, sys.executable, "-c", "print('new')")
    assert (await process.wait()).endswith("log: new")
    assert (tmp_path / "logs/engine.log.1").stat().st_size == 17 * 2**20
