"""The process: a child looks at all GPUs, and this one then becomes the engine, or ends and says why not.

The child holds the contexts, so nothing of them is left when the engine starts, and a driver that hangs costs no more than a
process. Where the driver can't run the test, the engine starts: what isn't known keeps nobody from starting. Where there is no GPU,
it starts if it is said that there need be none.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import select
import signal
import sys
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Final

from warmpool.nodehealth.preflight.cuda import NoGpu, gpus
from warmpool.nodehealth.preflight.findings import REFUSED, STARTS, Finding, Outcome
from warmpool.nodehealth.preflight.look import Limits, Time, look
from warmpool.nodehealth.preflight.ports import DriverFailed, Gpu

SWITCH: Final = "EMBERPOOL_PREFLIGHT"
"""Environment variable that switches the look off: `Off`."""
_MIB: Final = 2**20
_READ_BYTES: Final = 65_536
_GONE_SECONDS: Final = 5.0
_NO_SUCH_PROGRAM: Final = 127
_WRONG_USE: Final = 2
_EXECUTABLE: Final = 0o755
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PACKED: Final = "warmpool.nodehealth.preflight"
_BINDINGS: Final = "loader.cuda.library"


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Look, and become the engine; returns the exit status where that isn't to be."""
    options = _parser().parse_args(arguments)
    if options.pack is not None:
        pack(options.pack)
        return 0
    switch = environment.get(SWITCH, "On")
    if switch not in {"On", "Off"}:
        _say(f"error: {SWITCH} is {switch!r}\n\nhint: it takes On or Off")
        return _WRONG_USE
    if switch == "Off":
        findings: Sequence[Finding] = [Finding(Outcome.SKIPPED, "", f"{SWITCH} is Off")]
    else:
        looked = _looked(_limits(options), options.hang_seconds)
        findings = [_allowed(each) for each in looked] if options.allow_none else looked
    for finding in sorted(findings, key=lambda each: each.outcome not in STARTS):
        _say(finding.line)  # who keeps the end of a log keeps what was found
    if not {finding.outcome for finding in findings} <= STARTS:
        return REFUSED
    return _become(options.command) if options.command else 0


def _allowed(finding: Finding) -> Finding:
    """Return a finding where there need be no GPU."""
    if finding.outcome is not Outcome.NO_GPU:
        return finding
    return Finding(Outcome.SKIPPED, "", f"{finding.text}, and there need be none")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="preflight.pyz", description="Looks at the GPUs, and then becomes the engine."
    )
    limits = Limits()
    add = parser.add_argument
    add("--seconds", type=_seconds, default=limits.seconds, help="time for the memory test (default: 2)")
    add("--beside-mib", type=_mib, default=limits.beside_bytes // _MIB, help="tested beside others, at most")
    add("--most-mib", type=_mib, help="tested alone, at most (default: all that is free)")
    add("--needed-mib", type=_mib, default=0, help="free memory that the engine needs on each GPU")
    add("--free-seconds", type=_seconds, default=limits.free_seconds, help="how long that is waited for")
    add("--hang-seconds", type=_seconds, default=60.0, help="when the driver is taken to hang (default: 60)")
    add("--allow-none", action="store_true", help="become the engine where there is no GPU, too")
    add("--pack", type=Path, metavar="FILE", help="write all of this into one file, and end")
    add("command", nargs="*", metavar="COMMAND", help="the engine, after --; without one, look only")
    return parser


def _seconds(text: str) -> float:
    """Read a time.

    Raises:
        argparse.ArgumentTypeError: it is none, below 0, or without an end.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 on")
    return seconds


def _mib(text: str) -> int:
    """Read an amount of memory.

    Raises:
        argparse.ArgumentTypeError: it is none, or below 0.
    """
    try:
        amount = int(text)
    except ValueError:
        amount = -1
    if amount < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of MiB from 0 on")
    return amount


def options() -> Sequence[str]:
    """Return the names of its options."""
    return [name for action in _parser()._actions for name in action.option_strings if name.startswith("--")]  # noqa: SLF001 - argparse tells them no other way


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(
        seconds=options.seconds,
        beside_bytes=options.beside_mib * _MIB,
        most_bytes=None if options.most_mib is None else options.most_mib * _MIB,
        needed_bytes=options.needed_mib * _MIB,
        free_seconds=options.free_seconds,
    )


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _become(command: Sequence[str]) -> int:
    """Become the engine; returns only where there is no such program."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - that is the purpose
    except OSError as error:
        _say(f"error: {command[0]} can't be started: {error.strerror}")
    return _NO_SUCH_PROGRAM


# ---------------------------------------------------------------------- the child that looks


def _looked(limits: Limits, hang_seconds: float) -> Sequence[Finding]:
    """Have a child look at all GPUs, and wait until nothing of it is left."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        _look_and_end(limits, writing, parent)
    os.close(writing)
    told = _read_until(reading, time.monotonic() + hang_seconds)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    if not _gone(child) and told is not None:
        return [
            Finding(
                Outcome.NO_ANSWER, "", f"the driver has answered and not let go within {_GONE_SECONDS:.0f} s"
            )
        ]
    if told is None:
        return [Finding(Outcome.NO_ANSWER, "", f"the driver has not answered within {hang_seconds:.0f} s")]
    try:
        return [Finding(Outcome(each[0]), each[1], each[2]) for each in json.loads(told)]
    except ValueError:
        return [Finding(Outcome.DRIVER_FAILED, "", "the process that asks the driver ended with an error")]


def _look_and_end(limits: Limits, writing: int, parent: int) -> None:
    """Look at all GPUs, tell it and end, whatever happens; the child of a fork does nothing else."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            found = [[each.outcome.value, each.gpu, each.text] for each in _all(limits)]
            with os.fdopen(writing, "w") as told:
                json.dump(found, told)
    except BaseException:  # noqa: BLE001 - it ends here whatever comes, and this is the last place that can say why
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)  # nothing of the parent's is flushed or closed twice


def _all(limits: Limits) -> Sequence[Finding]:
    """Look at all GPUs at the same time, each in a thread of its own."""
    try:
        found = gpus()
    except NoGpu as none:
        return [Finding(Outcome.NO_GPU, "", f"there is no GPU: {none}")]
    except DriverFailed as failed:
        return [Finding(Outcome.DRIVER_FAILED, "", str(failed))]
    findings: dict[int, Finding] = {}

    def work(place: int, gpu: Gpu) -> None:
        findings[place] = look(gpu, limits, Time(time.monotonic, time.sleep))

    threads = [Thread(target=work, args=each) for each in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = Finding(Outcome.DRIVER_FAILED, "", "a look at a GPU ended with an error")
    return [findings.get(place, ended) for place in range(len(found))]


def _read_until(reading: int, until: float) -> str | None:
    """Read all that the child tells; None if it hasn't by then."""
    told = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while (left := until - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                chunk = pipe.read(_READ_BYTES)
                if not chunk:
                    return told.decode()
                told += chunk
    return None


def _gone(child: int) -> bool:
    """Whether a child that was killed has ended; one that sleeps in the driver doesn't."""
    until = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False


# ---------------------------------------------------------------------- one file of it


def pack(target: Path) -> None:
    """Write one file that any Python runs, with all that this needs and nothing else.

    It is there whole or not at all, and nothing is written anywhere else.

    Args:
        target: where; it is replaced.
    """
    own, bindings = _source_of(_PACKED), _source_of(_BINDINGS)
    sources = {f"{_PACKED}.{each.stem}": each for each in sorted(own.parent.glob("*.py"))} | {
        _BINDINGS: bindings
    }
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w") as archive:
                for name in sorted({name for module in sources for name in _packages(module)}):
                    archive.writestr(f"{name.replace('.', '/')}/__init__.py", "")
                for module, source in sources.items():
                    if source.stem != "__init__":
                        archive.writestr(f"{module.replace('.', '/')}.py", source.read_bytes())
                archive.writestr("__main__.py", f"from {_PACKED}.command import run\n\nrun()\n")
        part.chmod(_EXECUTABLE)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _source_of(module: str) -> Path:
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def _packages(module: str) -> Sequence[str]:
    """Return the packages that a module is in, the outermost first."""
    words = module.split(".")[:-1]
    return [".".join(words[: depth + 1]) for depth in range(len(words))]


def run() -> None:
    """Run as a program."""
    sys.exit(main(sys.argv[1:], os.environ))
