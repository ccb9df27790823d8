"""A /proc on disk, with the processes that a test describes, and with the test's own processes at the other ends of sockets."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from warmpool.nodehealth.processes import INITIAL_PID_NAMESPACE

TICKS = os.sysconf("SC_CLK_TCK")


def pod_cgroup(uid: str, container: str = "a" * 64) -> str:
    return f"0::/kubepods/burstable/pod{uid}/{container}"


@dataclass
class ProcTree:
    """The folder, and how processes are put into it and taken away."""

    root: Path
    initial: bool = True

    def __post_init__(self) -> None:
        (self.root / "self" / "ns").mkdir(parents=True)
        target = INITIAL_PID_NAMESPACE if self.initial else "pid:[4026532261]"
        (self.root / "self" / "ns" / "pid").symlink_to(target)

    def add(
        self,
        pid: int,
        *,
        parent: int = 1,
        ns_pids: tuple[int, ...] = (),
        sessions: tuple[int, ...] = (),
        uid: int = 1000,
        cgroup: str = "0::/",
        namespace: str = INITIAL_PID_NAMESPACE,
        started: float | None = None,
        gpu: bool = True,
    ) -> None:
        """Put a process there; it started an hour ago unless `started` says when, in seconds since boot."""
        began = time.clock_gettime(time.CLOCK_BOOTTIME) - 3600 if started is None else started
        numbers = " ".join(map(str, ns_pids or (pid,)))
        leaders = " ".join(map(str, sessions or (0,) * len(ns_pids or (pid,))))
        process = self.root / str(pid)
        (process / "ns").mkdir(parents=True, exist_ok=True)
        (process / "fd").mkdir(exist_ok=True)
        (process / "stat").write_text(
            f"{pid} (an engine) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {int(began * TICKS)} 0 0"
        )
        (process / "status").write_text(
            f"Name:\tan engine\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{numbers}\nNSsid:\t{leaders}\n"
        )
        (process / "cgroup").write_text(cgroup + "\n")
        (process / "ns" / "pid").unlink(missing_ok=True)
        (process / "ns" / "pid").symlink_to(namespace)
        if gpu and not (process / "fd" / "5").is_symlink():
            (process / "fd" / "5").symlink_to("/dev/nvidia0")

    def remove(self, pid: int) -> None:
        for name in ("stat", "status", "cgroup"):
            (self.root / str(pid) / name).unlink()
