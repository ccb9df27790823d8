"""Answering who holds which GPU memory: what is asked and by whom, one reading for all who ask, an answer by a deadline.

A caller learns what its own pod's processes hold, and of all others one sum. On the Unix socket the kernel says which process
asks, and the process's cgroup says which pod that is. Whoever is outside pods and containers gets its own user's processes, and
the node's root may ask for any pod. Who asks over TCP with the token is trusted to name a pod or processes.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from warmpool.errors import WarmpoolError
from warmpool.nodehealth.account import Ask, DeviceAccount, Reading, Scope, account, holders
from warmpool.nodehealth.lanes import Lane, LaneBusy
from warmpool.nodehealth.nvml import Device, by_name
from warmpool.nodehealth.pods import Pods
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.processes import NOBODY, Identity, Owner, Unseen
from warmpool.nodehealth.reader import Limits, Reader, TooSlow
from warmpool.nodehealth.wire import Answer

_LOG = logging.getLogger(__name__)

OLDEST_SECONDS = 0.1
"""How old a reading may be that several callers share, unless they want a younger one."""


class AskError(WarmpoolError):
    """A question can't be answered; `code` says why, as the API names it."""

    code = "BadQuestion"
    status = 400


class NotYours(AskError):
    """The caller asks for a pod that isn't its own."""

    code = "NotYours"
    status = 403


class UnknownGpu(AskError):
    """There is no such GPU on this node."""

    code = "UnknownGpu"
    status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        pod: UID of a pod; empty: the caller's own, if it is in one.
        pids: only these processes and those that descend from them, by the ids that the caller knows; empty: all of its own.
        gpus: UUIDs or indices; empty: those that the caller was given or has processes on.
        oldest_seconds: how long ago the reading may have begun.
    """

    pod: str = ""
    pids: frozenset[int] = frozenset()
    gpus: tuple[str, ...] = ()
    oldest_seconds: float = OLDEST_SECONDS


@dataclass(frozen=True, slots=True)
class Peer:
    """A process at the other end of a Unix socket, as the kernel says.

    Attributes:
        pid: its id in this process's PID namespace; 0 if it isn't visible from there.
        uid: its user.
    """

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        scope: whose processes it may know of.
        reason: why that is nobody's, where it is so for want of knowledge.
    """

    scope: Scope
    reason: str = ""


class Peers:
    """Finds out who processes are that ask, all those together that ask at the same time.

    Args:
        files: where processes are.
    """

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._lane = Lane("callers in /proc", lambda: None)
        self._turn = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Identity | Unseen]] = {}

    async def identify(self, pid: int, *, seconds: float) -> Identity | Unseen:
        """Find out who a process is.

        Raises:
            TimeoutError: /proc didn't tell in time.
        """
        mine = self._waiting.setdefault(pid, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(seconds), self._turn:
                if not mine.done():
                    await self._look(seconds)
        except TimeoutError:
            if not mine.done():  # a busy loop may let the time run out and have the answer all the same
                raise
        return mine.result()

    async def _look(self, seconds: float) -> None:
        """Look all those up that wait."""
        waiting, self._waiting = self._waiting, {}
        found: Mapping[int, Identity | Unseen] = {}
        try:
            found = await self._lane.call(partial(self._all, tuple(waiting)), seconds=seconds)
        except LaneBusy:
            _LOG.debug("/proc does not answer")
        finally:
            for pid, its in waiting.items():
                its.set_result(found.get(pid, Unseen.UNTOLD))

    def _all(self, pids: tuple[int, ...]) -> dict[int, Identity | Unseen]:
        return {pid: self._files.identify(pid) for pid in pids}

    def close(self) -> None:
        """Let the thread end."""
        self._lane.close()


class MemoryService:
    """Answers questions.

    Args:
        reader: the GPUs.
        pods: the kubelet's word.
        files: the processes.
        limits: how long things may take.
    """

    def __init__(self, reader: Reader, pods: Pods, files: ProcFiles, limits: Limits) -> None:
        self._limits = limits
        self._reader = reader
        self._pods = pods
        self._peers = Peers(files)

    async def answer(self, question: Question, peer: Peer | None) -> Answer:
        """Answer a question in time, whatever is known by then.

        Args:
            question: what is asked.
            peer: who asks; None: somebody with the token, over TCP.

        Raises:
            AskError: it can't be answered, or not to this caller.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.made_seconds
        caller = await self.caller(question, peer, until)
        reading = await self._read(question.oldest_seconds, max(0.0, until - loop.time()))
        given = self._pods.gpus_of(caller.scope.owner.pod) if caller.scope.owner.pod else None
        devices: Sequence[str] = _devices(question.gpus, self._reader.listing.devices)
        reason = caller.reason or reading.reason
        if not question.gpus:
            devices = self._own(caller.scope, given, reading)
            if caller.scope.owner.pod and given is None:
                reason = reason or self._pods.reason or "the kubelet has told of no GPU of the pod"
        accounts = account(reading, Ask(scope=caller.scope, devices=devices, pids=question.pids))
        return Answer(
            accounts=accounts,
            complete=_complete(caller.scope, accounts),
            age_seconds=loop.time() - reading.began_at,
            given=given,
            reason=reason,
            notes=self._notes(),
        )

    def close(self) -> None:
        """Let go of its thread."""
        self._peers.close()

    async def _read(self, oldest_seconds: float, seconds: float) -> Reading:
        try:
            return await self._reader.read(max_age_seconds=oldest_seconds, seconds=seconds)
        except TooSlow as slow:
            return self._reader.unread(str(slow))

    def _own(self, scope: Scope, given: frozenset[str] | None, reading: Reading) -> Sequence[str]:
        """Return the devices of a caller that names none: its pod's, or all GPUs outside pods."""
        if scope.owner.pod:
            return sorted((given or frozenset()) | holders(reading, scope))
        return [device.uuid for device in self._reader.listing.devices if not device.parent]

    def _notes(self) -> tuple[str, ...]:
        notes = (self._pods.reason, *self._reader.listing.unreadable)
        return tuple(note for note in notes if note)

    # ------------------------------------------------------------------ who asks

    async def caller(self, question: Question, peer: Peer | None, until: float) -> Caller:
        """Find out who asks.

        Args:
            question: what is asked.
            peer: who is at the other end; None: somebody with the token, over TCP.
            until: by when, on the loop's clock.

        Raises:
            NotYours: the caller asks for a pod that isn't its own.
        """
        if peer is None:
            return _trusted(question)
        found = await self._identify(peer, until)
        if not isinstance(found, Identity):
            return Caller(Scope(), f"who asks can't be identified: {found}")
        owner = found.owner
        if question.pod and question.pod != owner.pod:
            if owner != NOBODY or peer.uid != 0:
                raise NotYours(f"pod {question.pod} is not the caller's")
            owner = Owner(question.pod)
        return Caller(
            Scope(
                owner=owner,
                uid=peer.uid if owner == NOBODY else None,
                by_own_ids=len(found.ns_pids) > 1,
            )
        )

    async def _identify(self, peer: Peer, until: float) -> Identity | str:
        """Return who the caller is, or why that can't be told."""
        if peer.pid <= 0:
            return (
                "it runs in a PID namespace that the node agent doesn't see; the node agent wants the host's"
            )
        left = until - asyncio.get_running_loop().time()
        try:
            found = await self._peers.identify(peer.pid, seconds=left / 2)
        except TimeoutError:
            return "/proc does not answer"
        return found if not isinstance(found, Unseen) else f"process {peer.pid} is {found}"


def _trusted(question: Question) -> Caller:
    """Return the scope of a caller with the token, who may name whom it wants to know of."""
    if question.pod:
        return Caller(Scope(owner=Owner(question.pod), by_own_ids=True))
    if question.pids:
        return Caller(Scope(everyone=True))
    return Caller(Scope(), "neither a pod nor processes were named")


def _devices(gpus: Sequence[str], devices: Sequence[Device]) -> list[str]:
    """Return the UUIDs of devices that were named.

    Raises:
        UnknownGpu: there is no such device.
    """
    known = by_name(devices)
    for gpu in gpus:
        if devices and gpu not in known:
            raise UnknownGpu(f"there is no GPU {gpu} on this node; it has {', '.join(sorted(known))}")
    return [known[gpu] for gpu in gpus if gpu in known]


def _complete(scope: Scope, accounts: Sequence[DeviceAccount]) -> bool:
    """Whether nobody whom the caller could mean was left out.

    A pod is looked at whole. A container is not the whole of a service in containers without pods, and one user isn't all of
    a machine's: there the devices must have no other holder.
    """
    return scope.everyone or bool(scope.owner.pod) or all(each.others_bytes == 0 for each in accounts)
