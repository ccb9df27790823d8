"""SIGHUP without a terminal asks for a reload; the hang-up of the terminal itself ends the process in order."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

PROGRAM = """
import asyncio, os, sys
from contextlib import AsyncExitStack
from scaler.runtime.hang_up import reload_on_hang_up

async def main(report):
    async with AsyncExitStack() as stack:
        stop = asyncio.Event()
        reload = reload_on_hang_up(stack, stop)
        report.write("ready\\n")
        waiting = {asyncio.ensure_future(event.wait()): name for event, name in ((stop, "stop"), (reload, "reload"))}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        sys.stderr.write("what is said while ending must not fail\\n")
        sys.stderr.flush()
        report.write("".join(waiting[task] for task in done) + "\\n")

with os.fdopen(int(sys.argv[1]), "w", buffering=1) as report:
    asyncio.run(main(report))
"""


class Child:
    """The program, with a pipe on which it reports."""

    def __init__(self, stdio: int | IO[bytes], report: int, *, session: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(report)],
            stdin=stdio,
            stdout=stdio,
            stderr=stdio,
            pass_fds=[report],
            start_new_session=session,
        )


async def lines(report: int, count: int) -> Sequence[str]:
    with os.fdopen(os.dup(report), encoding="utf-8") as stream:
        async with asyncio.timeout(30):
            return [await asyncio.to_thread(stream.readline) for _ in range(count)]


async def test_a_signal_asks_for_a_reload(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    with (tmp_path / "output").open("w+b") as output:
        child = Child(output, theirs, session=True)
    os.close(theirs)
    assert await lines(ours, 1) == ["ready\n"]
    child.process.send_signal(signal.SIGHUP)
    assert await lines(ours, 1) == ["reload\n"]
    assert await asyncio.to_thread(child.process.wait, 20) == 0
    os.close(ours)


async def test_a_signal_to_a_program_in_a_terminal_asks_for_a_reload() -> None:
    ours, theirs = os.pipe()
    master, slave = pty.openpty()
    child = Child(slave, theirs, session=True)
    os.close(slave)
    os.close(theirs)
    assert await lines(ours, 1) == ["ready\n"]
    child.process.send_signal(signal.SIGHUP)
    assert await lines(ours, 1) == ["reload\n"]
    assert await asyncio.to_thread(child.process.wait, 20) == 0
    os.close(master)
    os.close(ours)


async def test_a_terminal_that_is_gone_ends_the_program_in_order() -> None:
    ours, theirs = os.pipe()
    pid, master = pty.fork()  # the child has the terminal for its own: it is told when that goes
    if pid == 0:
        os.close(ours)
        os.set_inheritable(theirs, True)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, str(theirs)])
    os.close(theirs)
    assert await lines(ours, 1) == ["ready\n"]
    os.close(master)
    assert await lines(ours, 1) == ["stop\n"]
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    os.close(ours)
