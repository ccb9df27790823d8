"""Reading /proc: who the processes on the GPUs are. It blocks, if only for microseconds; it is called in a lane.

A process id is good for as long as its process lives. So a process that started after NVML listed its id is not the one that
NVML meant, and one that ends while its files are read is gone.

The process that holds a GPU's memory is seldom the one that was started: engines have workers. So each comes with its kin, the
processes that it descends from and the leader of its session, by any of which somebody may know it.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path

from warmpool.nodehealth.processes import (
    INITIAL_PID_NAMESPACE,
    Identity,
    Look,
    Owner,
    Status,
    Unseen,
    owner_of,
    start_ticks_of,
    status_of,
)

_PROC = Path("/proc")
_MOST_ANCESTORS = 64
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_GPU_FILES = "/dev/nvidia"


class ProcFiles:
    """The processes of this PID namespace.

    Args:
        root: where its /proc is.
    """

    def __init__(self, root: Path = _PROC) -> None:
        self._root = root

    def sees_all(self) -> bool:
        """Whether this process is in the initial PID namespace, so that it sees every process by the id that NVML knows."""
        return self._link("self", "ns/pid") == INITIAL_PID_NAMESPACE

    def since_boot(self) -> float:
        """Return the seconds since boot, on the clock of processes' start times."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def look(self, pids: Collection[int], *, before: float) -> Look:
        """Find out who processes are that a GPU is held by.

        Args:
            pids: their ids.
            before: seconds since boot at which they were there already.
        """
        sure = self.sees_all()
        return {pid: self._listed(pid, before=before, sure=sure) for pid in pids}

    def identify(self, pid: int) -> Identity | Unseen:
        """Find out who a process is."""
        return self._started_by(pid, float("inf"))

    def _listed(self, pid: int, *, before: float, sure: bool) -> Identity | Unseen:
        found = self._started_by(pid, before)
        return found if isinstance(found, Unseen) or sure or self._holds_gpu(pid) else Unseen.NO_GPU

    def _started_by(self, pid: int, latest: float) -> Identity | Unseen:
        """Find out who a process is that had started by then, in seconds since boot; starts are rounded down to a tick."""
        try:
            began = start_ticks_of(self._read(pid, "stat"))
            status, owner = status_of(self._read(pid, "status")), owner_of(self._read(pid, "cgroup"))
            if status is None or began is None:
                return Unseen.UNREADABLE
            identity = Identity(
                ns_pids=status.ns_pids,
                namespace=self._link(str(pid), "ns/pid"),
                owner=owner,
                uid=status.uid,
                kin=self._kin(status, owner),
            )
            same = start_ticks_of(self._read(pid, "stat")) == began
        except (FileNotFoundError, ProcessLookupError):
            return Unseen.GONE
        except OSError:
            return Unseen.UNREADABLE
        return identity if same and began / _TICKS_PER_SECOND <= latest else Unseen.GONE

    def _kin(self, status: Status, owner: Owner) -> tuple[tuple[int, ...], ...]:
        kin = [status.ns_pids]
        ancestor = status.parent
        while ancestor and len(kin) < _MOST_ANCESTORS:
            try:
                parent = status_of(self._read(ancestor, "status"))
                if parent is None or owner_of(self._read(ancestor, "cgroup")) != owner:
                    break
            except OSError:
                break
            kin.append(parent.ns_pids)
            ancestor = parent.parent
        kin.append(status.ns_sessions)
        return tuple(dict.fromkeys(each for each in kin if each))

    def _holds_gpu(self, pid: int) -> bool:
        """Whether a process has a GPU's device file open, as far as this process may see."""
        try:
            files = list((self._root / str(pid) / "fd").iterdir())
        except OSError:
            return False
        return any(self._link(str(pid), f"fd/{each.name}").startswith(_GPU_FILES) for each in files)

    def _read(self, pid: int, name: str) -> str:
        return (self._root / str(pid) / name).read_text(encoding="utf-8", errors="replace")

    def _link(self, pid: str, name: str) -> str:
        try:
            return str((self._root / pid / name).readlink())
        except OSError:
            return ""
