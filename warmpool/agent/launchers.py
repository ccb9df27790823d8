"""The launchers of a seat: one for each container that holds engines, or one for all of them.

Who starts which resident is settled by the config; the agent sees one parent of engines, whatever their number. Each launcher comes,
goes and begins anew by itself, and with it its own engines alone. The seat ends when all of them have been told to: a pod's containers
are told together, and one that is told alone is started again by the kubelet.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from warmpool.agent.launching import LaunchedProcess, Launcher
from warmpool.agent.processes import Ports, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Hears:
    """Who hears what becomes of launchers.

    Attributes:
        leaving: one of several has been told to end: whose engines it has, and how many seconds are left for draining.
        ending: the last of them has been told so; the same.
        superseded: an agent that started later has taken one over. Stop acting.
        changed: one has come, or is gone.
    """

    leaving: Callable[[Sequence[str], float], None]
    ending: Callable[[Sequence[str], float], None]
    superseded: Callable[[], None]
    changed: Callable[[], None]


class Launchers:
    """The parents of one seat's engines; see `warmpool.agent.processes.Starter`.

    Args:
        sockets: per resident, the socket of the launcher that starts its engine.
        secret: what launchers want to hear; empty if they ask for none.
        hears: who hears what becomes of them.
    """

    def __init__(self, sockets: Mapping[str, Path], *, secret: str, hears: Hears) -> None:
        self._hears = hears
        self._names: dict[Path, list[str]] = {}
        for name, path in sockets.items():
            self._names.setdefault(path, []).append(name)
        self._launchers = {
            path: Launcher(
                path,
                secret=secret,
                on_draining=partial(self._told_to_end, path),
                on_superseded=hears.superseded,
                on_change=hears.changed,
            )
            for path in self._names
        }
        self._of = {name: self._launchers[path] for name, path in sockets.items()}

    async def attend(self) -> None:
        """Keep in touch with all of them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for launcher in self._launchers.values():
                tasks.create_task(launcher.attend())

    def ready(self, name: str) -> bool:
        """Whether a resident's launcher is there, and here to stay."""
        return self._of[name].ready

    async def start(self, start: Start, ports: Ports) -> LaunchedProcess:
        """Start an engine.

        Raises:
            StartFailed: its launcher doesn't start it.
        """
        return await self._of[start.name].start(start, ports)

    async def running(self, start: Start) -> tuple[LaunchedProcess, Mapping[str, Any]] | None:
        """Return the engine that an earlier agent has started in this way, and what that noted; None if none runs."""
        return await self._of[start.name].running(start)

    async def end_others(self, names: Sequence[str]) -> None:
        """End the engines of other names, and those that another launcher has to have."""
        for path, launcher in self._launchers.items():
            await launcher.end_others([name for name in self._names[path] if name in names])

    async def close(self) -> None:
        """Close the connections. The engines go on."""
        for launcher in self._launchers.values():
            await launcher.close()

    def _told_to_end(self, path: Path, seconds: float) -> None:
        last = all(launcher.draining for launcher in self._launchers.values())
        tell = self._hears.ending if last else self._hears.leaving
        tell(self._names[path], seconds)
