"""Asking for the memory of a seat's GPUs: of the node agent, or, without one, of NVML in this process, which proves nothing.

Their health is asked of the node agent alone.

An answer is always there, by the deadline, and never an error: what isn't known is None with the reason why, and what isn't
proven is marked so. A seat that can't be measured is one whose figures are unknown; it is not one that holds nothing.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Protocol

import aiohttp

from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.lanes import Lane, LaneBusy
from warmpool.nodehealth.nvml import DeviceMemory, Nvml, NvmlError, by_name, driver
from warmpool.seats import UNKNOWN, GpuWord, Verdict, worst_of

TOKEN_VARIABLE = "EMBERPOOL_NODE_TOKEN"  # noqa: S105 (a variable's name)
"""Environment variable that holds the bearer token of a node agent that listens on TCP."""
UNIX = "unix://"
"""What the address of a node agent on a Unix socket begins with; a path follows."""
MOST_PATH_BYTES = 107
"""The longest path of a Unix socket: sockaddr_un's 108 bytes of sys/un.h, less a closing zero."""
MOST_FAULT_CHARACTERS = 300
"""How long the words on a fault may be."""
_ANSWER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SeatHealth:
    """What is said of a seat's GPUs.

    Attributes:
        verdict: the worst of them; one of which nothing is known isn't worse for it.
        known: something is known of each of them.
        reason: why it is Suspect or Bad, or nothing is known; empty if all is well.
        words: what is said of each; empty where nobody has answered.
    """

    verdict: Verdict
    known: bool
    reason: str = ""
    words: tuple[GpuWord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Device memory of one GPU.

    Attributes:
        uuid: which one.
        total_bytes: all of it; None if unknown.
        free_bytes: what can be allocated; None if unknown.
        by_namespace: what processes hold there, as `SeatMemory` has it of all.
    """

    uuid: str
    total_bytes: int | None
    free_bytes: int | None
    by_namespace: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))

    def held_by(self, pid: int, namespace: str, *, exact: bool) -> int:
        """Return what a process holds here; whatever goes by its id, unless its namespace is to be `exact`."""
        if exact:
            return self.by_namespace.get((namespace, pid), 0)
        return sum(size for (_, each), size in self.by_namespace.items() if each == pid)


@dataclass(frozen=True, slots=True)
class SeatMemory:
    """Device memory of a seat's GPUs, all of them together.

    Attributes:
        total_bytes: all of it; None if unknown.
        used_bytes: what is in use by whomever; None if unknown.
        free_bytes: what can be allocated in equal parts, as the ranks of an engine do: so many times what the fullest GPU has free; None if
            unknown.
        by_process: what each process holds together with those that descend from it or are of its session, by process id as
            the caller sees it, or as a process of another PID namespace of the same pod sees itself. None unless verified.
        verified: who holds how much is known for certain.
        reason: why something isn't known; empty if all is.
        complete: a process that `by_process` lacks holds nothing, because everybody whom the caller could mean was looked at.
        by_namespace: the same as `by_process`, by the name of the ids' PID namespace and the id. Equal ids of different containers
            are told apart by it.
        gpus: each GPU by itself; empty if nothing is known.
    """

    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    by_process: Mapping[int, int] | None
    verified: bool
    reason: str = ""
    complete: bool = False
    by_namespace: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))
    gpus: tuple[GpuMemory, ...] = ()

    def held_on(self, pid: int, namespace: str = "") -> tuple[int, ...] | None:
        """Return the same as `held_by`, on each of `gpus`; None if that isn't known."""
        whole, exact = self.held_by(pid, namespace), (namespace, pid) in self.by_namespace
        found = tuple(gpu.held_by(pid, namespace, exact=exact) for gpu in self.gpus)
        return found if found and sum(found) == whole else None

    def held_by(self, pid: int, namespace: str = "") -> int | None:
        """Return what a process and all that it started hold, in bytes; None if that isn't known for certain.

        Args:
            pid: its id, as `by_process` has it.
            namespace: the PID namespace that the id is of, as `/proc/PID/ns/pid` links to; empty if the caller doesn't know.
        """
        if not self.verified or self.by_process is None:
            return None
        if (namespace, pid) in self.by_namespace:
            return self.by_namespace[namespace, pid]
        if namespace and any(space.startswith("pid:") for space, its in self.by_namespace if its == pid):
            return 0 if self.complete else None  # that one is a process of another container
        return self.by_process.get(pid, 0 if self.complete else None)


class NodeMemory(Protocol):
    """Where the memory of GPUs is asked for."""

    async def read(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatMemory:
        """Read it now: what was freed or taken before the call is in the answer.

        Args:
            gpus: UUIDs or indices of the seat's GPUs; empty: those that the kubelet gave the caller's pod.
            deadline: by when there is an answer, whatever it is.
        """

    async def health(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatHealth:
        """Ask what is said of GPUs, by the deadline; where nobody can be asked, nothing is known.

        Args:
            gpus: UUIDs or indices of the seat's GPUs; empty: those that the kubelet gave the caller's pod.
            deadline: by when there is an answer, whatever it is.
        """

    async def canary(self, gpus: Sequence[str], *, passed: bool, proof: str, deadline: Deadline) -> bool:
        """Tell what came of a canary: a resident was started on GPUs and answered as it should, or otherwise.

        Args:
            gpus: UUIDs or indices of the GPUs; empty: those that the kubelet gave the caller's pod.
            passed: whether it answered as it should.
            proof: stands for the engine and what it should answer: one that fails counts against a GPU where the same has passed.
            deadline: by when it must be told.

        Returns:
            Whether somebody took it in.
        """

    async def fault(self, gpus: Sequence[str], *, text: str, deadline: Deadline) -> bool:
        """Tell that something was found of GPUs before an engine was started there, which their driver tells nobody.

        Args:
            gpus: UUIDs or indices of the GPUs; empty: those that the kubelet gave the caller's pod.
            text: what was found.
            deadline: by when it must be told.

        Returns:
            Whether somebody took it in.
        """

    async def close(self) -> None:
        """Let go of connections."""


def connect(address: str, *, pod: str = "", token: str = "") -> NodeMemory:
    """Return where to ask.

    Args:
        address: the node agent's, `unix:///…` or `http://…`; empty: there is none.
        pod: UID of the caller's pod; empty outside Kubernetes.
        token: what a node agent on TCP wants to see.
    """
    alone: NodeMemory = (
        DeviceTotals(driver)
        if find_spec("pynvml") is not None
        else NoMemory("nvidia-ml-py is not installed (it comes with emberpool[node])")
    )
    return NodeAgent(address, alone, pod=pod, token=token) if address else alone


def unknown(reason: str) -> SeatMemory:
    """Return what is said where nothing is known."""
    return SeatMemory(None, None, None, None, verified=False, reason=reason)


class _Unjudged:
    """Where nobody watches over the GPUs: nothing is known of their health, and nobody takes in what is told of it."""

    async def health(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatHealth:
        """See `NodeMemory.health`."""
        del gpus, deadline
        return SeatHealth(Verdict.OK, known=False, reason="no node agent is configured")

    async def canary(self, gpus: Sequence[str], *, passed: bool, proof: str, deadline: Deadline) -> bool:
        """See `NodeMemory.canary`; nobody does."""
        del gpus, passed, proof, deadline
        return False

    async def fault(self, gpus: Sequence[str], *, text: str, deadline: Deadline) -> bool:
        """See `NodeMemory.fault`; nobody does."""
        del gpus, text, deadline
        return False


class NoMemory(_Unjudged):
    """Nobody can be asked.

    Args:
        reason: why not.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def read(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatMemory:
        """See `NodeMemory.read`."""
        del gpus, deadline
        return unknown(f"no node agent is configured, and {self._reason}")

    async def close(self) -> None:
        """Nothing is held."""


class DeviceTotals(_Unjudged):
    """NVML in this process: totals alone, because it can't tell whose processes those of other containers are.

    Args:
        nvml: opens it, in a thread.
    """

    def __init__(self, nvml: Callable[[], Nvml]) -> None:
        self._open = nvml
        self._nvml: Nvml | None = None
        self._uuids: Mapping[str, str] = {}
        self._lane = Lane("NVML", lambda: None)

    async def read(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatMemory:
        """See `NodeMemory.read`."""
        try:
            found = await self._lane.call(lambda: self._totals(gpus), seconds=max(0.0, deadline.left_seconds))
        except (NvmlError, LaneBusy) as error:
            return unknown(f"no node agent is configured, and NVML can't be asked here: {error}")
        return SeatMemory(
            sum(memory.total_bytes for memory in found),
            sum(memory.used_bytes for memory in found),
            _in_equal_parts([memory.free_bytes for memory in found]),
            None,
            verified=False,
            reason="without a node agent the devices' totals alone are known",
            gpus=tuple(
                GpuMemory(
                    uuid=self._uuids.get(gpu, gpu),
                    total_bytes=memory.total_bytes,
                    free_bytes=memory.free_bytes,
                )
                for gpu, memory in zip(gpus, found, strict=True)
            ),
        )

    async def close(self) -> None:
        """Let the thread end; the driver is let go of with the process."""
        self._lane.close()

    def _totals(self, gpus: Sequence[str]) -> list[DeviceMemory]:
        """Read the memory of GPUs, in the lane."""
        if self._nvml is None:
            nvml = self._open()
            with suppress(NvmlError):  # what it belonged to may be gone
                nvml.stop()
            nvml.start()
            self._uuids, self._nvml = by_name(nvml.devices().devices), nvml
        if not gpus:
            raise NvmlError("which GPUs the seat has is not known")
        if missing := [gpu for gpu in gpus if gpu not in self._uuids]:
            raise NvmlError(f"there is no GPU {missing[0]}")
        try:
            return [self._nvml.memory(self._uuids[gpu]) for gpu in gpus]
        except NvmlError:
            self._nvml = None  # next time from the beginning: the driver may have been reloaded
            raise


# ---------------------------------------------------------------------- the node agent


class _Refused(Exception):
    """The node agent said no, and why."""


class _NoAnswer(Exception):
    """The node agent gave none; the message says why."""


_NOT_AN_ANSWER = (ValueError, KeyError, TypeError, RecursionError)
"""What reading something raises that is no answer."""


class NodeAgent:
    """A node agent over HTTP.

    Args:
        address: `unix:///…` or `http://…`.
        alone: where totals come from while it doesn't answer.
        pod: UID of the caller's pod; empty outside Kubernetes.
        token: what it wants to see on TCP.
    """

    def __init__(self, address: str, alone: NodeMemory, *, pod: str = "", token: str = "") -> None:
        self._address = address
        self._alone = alone
        self._pod = pod
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def read(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatMemory:
        """See `NodeMemory.read`."""
        query = {"maxAgeMilliseconds": "0", "gpu": ",".join(gpus), "pod": self._pod}
        try:
            return seat_memory(await self._answer("GET", "/v1/memory", query, deadline))
        except _NoAnswer as none:
            known = await self._alone.read(gpus, deadline=deadline)
            return replace(known, reason=str(none))
        except _NOT_AN_ANSWER as error:
            known = await self._alone.read(gpus, deadline=deadline)
            return replace(known, reason=str(self._none(f"what it says is no answer: {error!r}")))

    async def health(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatHealth:
        """See `NodeMemory.health`."""
        query = {"gpu": ",".join(gpus), "pod": self._pod}
        try:
            answer = await self._answer("GET", "/v1/health", query, deadline)
            if not gpus and not self._pod and len(answer["gpus"]) > 1:
                return SeatHealth(Verdict.OK, known=False, reason="which GPUs the seat has is not known")
            return seat_health(answer)
        except _NoAnswer as none:
            return SeatHealth(Verdict.OK, known=False, reason=str(none))
        except _NOT_AN_ANSWER as error:
            wrong = self._none(f"what it says is no answer: {error!r}")
            return SeatHealth(Verdict.OK, known=False, reason=str(wrong))

    async def canary(self, gpus: Sequence[str], *, passed: bool, proof: str, deadline: Deadline) -> bool:
        """See `NodeMemory.canary`."""
        return await self._tell(gpus, {"passed": "true" if passed else "false", "proof": proof}, deadline)

    async def fault(self, gpus: Sequence[str], *, text: str, deadline: Deadline) -> bool:
        """See `NodeMemory.fault`."""
        return await self._tell(gpus, {"passed": "false", "fault": text[:MOST_FAULT_CHARACTERS]}, deadline)

    async def _tell(self, gpus: Sequence[str], what: Mapping[str, str], deadline: Deadline) -> bool:
        if not gpus and not self._pod:
            return False  # nobody knows on which of the node's GPUs it ran
        query = {"gpu": ",".join(gpus), "pod": self._pod, **what}
        try:
            await self._answer("POST", "/v1/canary", query, deadline)
        except _NoAnswer:
            return False
        return True

    async def close(self) -> None:
        """See `NodeMemory.close`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._alone.close()

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], deadline: Deadline
    ) -> Mapping[str, Any]:
        """Ask, by a deadline.

        Raises:
            _NoAnswer: none came.
        """
        try:
            async with asyncio.timeout_at(deadline.at):
                return await self._ask(method, path, {key: value for key, value in query.items() if value})
        except TimeoutError:
            raise self._none("it didn't answer in time") from None
        except (aiohttp.ClientError, OSError, _Refused) as error:
            raise self._none(str(error) or type(error).__name__) from error
        except _NOT_AN_ANSWER as error:
            raise self._none(f"what it says is no answer: {error!r}") from error

    def _none(self, reason: str) -> "_NoAnswer":
        return _NoAnswer(f"the node agent at {self._address} can't be asked: {reason}")

    async def _ask(self, method: str, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        if self._session is None:
            unix = self._address.startswith(UNIX)
            connector = aiohttp.UnixConnector(self._address.removeprefix(UNIX)) if unix else None
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        base = "http://node" if self._address.startswith(UNIX) else self._address
        async with self._session.request(method, f"{base}{path}", params=query) as response:
            body = json.loads(await _whole(response.content))
            if response.status != 200:  # noqa: PLR2004 - HTTP's OK
                raise _Refused(str(body["error"]["message"]))
            if not isinstance(body, dict):
                raise ValueError("it is no object")  # noqa: TRY004 - it is data that is wrong
            return body


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """Read a body.

    Raises:
        ValueError: it is longer than any answer.
    """
    body = b""
    while chunk := await content.read(_ANSWER_BYTES):  # what has come so far, which may be a part
        body += chunk
        if len(body) > _ANSWER_BYTES:
            raise ValueError(f"it has more than {_ANSWER_BYTES} bytes")
    return body


def seat_memory(answer: Mapping[str, Any]) -> SeatMemory:
    """Read a node agent's answer.

    Raises:
        KeyError, TypeError, ValueError: it isn't one.
    """
    gpus = answer["gpus"]
    by_namespace = _by_namespace(gpus) if answer["verified"] else {}
    held, clash = _by_process(by_namespace) if answer["verified"] else (None, "")
    return SeatMemory(
        _sum(gpus, "totalBytes"),
        _sum(gpus, "usedBytes"),
        None if _sum(gpus, "freeBytes") is None else _in_equal_parts([int(gpu["freeBytes"]) for gpu in gpus]),
        held,
        verified=held is not None,
        reason=str(answer["reason"]) or clash,
        complete=bool(answer["complete"]) and not clash,
        by_namespace=MappingProxyType(by_namespace),
        gpus=tuple(_gpu_memory(gpu, verified=bool(answer["verified"])) for gpu in gpus),
    )


def _gpu_memory(gpu: Mapping[str, Any], *, verified: bool) -> GpuMemory:
    sizes = [gpu[key] for key in ("totalBytes", "freeBytes")]
    total, free = (None if size is None else int(size) for size in sizes)
    held = _by_namespace([gpu]) if verified else {}
    return GpuMemory(
        uuid=str(gpu.get("uuid", "")), total_bytes=total, free_bytes=free, by_namespace=MappingProxyType(held)
    )


def _sum(gpus: Sequence[Mapping[str, Any]], key: str) -> int | None:
    sizes = [gpu[key] for gpu in gpus]
    return None if not sizes or None in sizes else sum(int(size) for size in sizes)


def _in_equal_parts(sizes: Sequence[int]) -> int:
    return len(sizes) * min(sizes, default=0)


def _by_namespace(gpus: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    """Add up by PID namespace and each id that a process goes by there."""
    held: dict[tuple[str, int], int] = {}
    for process in (process for gpu in gpus for process in gpu["processes"]):
        for pid in process["ids"]:
            key = str(process["pidNamespace"]), int(pid)
            held[key] = held.get(key, 0) + int(process["bytes"])
    return held


def _by_process(by_namespace: Mapping[tuple[str, int], int]) -> tuple[Mapping[int, int], str]:
    """Leave namespaces out, and say what is wrong with ids that are left out for that.

    Equal ids of different PID namespaces are nobody's in particular: two containers of a pod each have a process 1.
    """
    times = Counter(pid for _, pid in by_namespace)
    clear = MappingProxyType({pid: size for (_, pid), size in by_namespace.items() if times[pid] == 1})
    text = ", ".join(str(pid) for pid, count in sorted(times.items()) if count > 1)
    return clear, f"containers of the pod have processes of the same ids on the GPUs: {text}" if text else ""


# ---------------------------------------------------------------------- health


def seat_health(answer: Mapping[str, Any]) -> SeatHealth:
    """Read a node agent's answer about GPUs' health.

    Raises:
        KeyError, TypeError, ValueError: it isn't one.
    """
    words = tuple(_gpu_word(gpu) for gpu in answer["gpus"])
    said = [f"{each.uuid} is {each.word}: {each.reason}" for each in words if each.word not in _WELL]
    return SeatHealth(
        worst_of(words),
        known=bool(words) and all(each.word != UNKNOWN for each in words),
        reason=". ".join(said) or str(answer["reason"]),
        words=words,
    )


_WELL = frozenset({str(Verdict.OK), UNKNOWN})


def _gpu_word(gpu: Mapping[str, Any]) -> GpuWord:
    word = str(gpu["verdict"])
    if word not in _WELL:
        Verdict(word)
    texts = [str(reason["text"]) for reason in gpu["reasons"] if reason["verdict"] == word]
    stops = gpu.get("stops") is True
    return GpuWord(uuid=str(gpu["uuid"]), word=word, reason="; ".join(texts), stops=stops)
