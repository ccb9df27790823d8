"""Answering what is said of GPUs, and taking in what came of canaries.

Health is no secret of a pod: whoever may ask at all may ask for any GPU. But what came of a canary is believed of a pod that has the
GPU alone, of the node's root and the node agent's own user outside containers, and of who has the token.
"""

import asyncio
import os
from collections.abc import Collection
from dataclasses import dataclass

from warmpool.nodehealth.monitor import HealthMonitor
from warmpool.nodehealth.nvml import by_name
from warmpool.nodehealth.pods import Pods
from warmpool.nodehealth.processes import NOBODY
from warmpool.nodehealth.reader import Limits, Reader
from warmpool.nodehealth.service import MemoryService, NotYours, Peer, Question, UnknownGpu
from warmpool.nodehealth.wire import HealthAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What answers are made of.

    Attributes:
        monitor: watches over the GPUs.
        reader: knows which there are.
        pods: knows which pod has which.
        memory: knows who asks.
        limits: how long things may take.
    """

    monitor: HealthMonitor
    reader: Reader
    pods: Pods
    memory: MemoryService
    limits: Limits


class HealthService:
    """Answers questions about health.

    Args:
        parts: what answers are made of.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def sources(self) -> dict[str, str]:
        """Why a source doesn't work, by its name; empty where it does."""
        monitor = self._parts.monitor
        kernel = monitor.kernel_log
        return {
            "Events": monitor.events_reason,
            "KernelLog": "it isn't read" if kernel is None else kernel.reason,
            "File": monitor.file_reason,
        }

    def whole(self) -> HealthAnswer:
        """Say what is said of all GPUs, to whom the node trusts."""
        monitor = self._parts.monitor
        node = monitor.verdict
        gpus = sorted(gpu.uuid for gpu in node.gpus)
        return HealthAnswer(node=node, gpus=gpus, epoch=monitor.epoch, reason="", sources=self.sources)

    async def answer(self, question: Question, peer: Peer | None) -> HealthAnswer:
        """Say what is said of the GPUs that a caller names, or of its pod's; of all to who is in no pod and names none.

        Args:
            question: what is asked.
            peer: who asks; None: somebody with the token, over TCP.

        Raises:
            AskError: it can't be answered, or not to this caller.
        """
        monitor = self._parts.monitor
        gpus, reason = await self._gpus(question, peer)
        node, known = monitor.verdict_on(gpus), monitor.record.gpus.keys()
        if not reason and not monitor.settled.is_set():
            reason = "the GPUs haven't been read yet"
        if not reason and not known >= gpus:
            reason = "nothing was read of a GPU that was asked for"
        return HealthAnswer(
            node=node, gpus=sorted(gpus), epoch=monitor.epoch, reason=reason, sources=self.sources
        )

    async def canary(
        self, question: Question, peer: Peer | None, *, passed: bool, proof: str, fault: str
    ) -> tuple[Collection[str], bool]:
        """Take note of what came of a canary; return the UUIDs of the GPUs that it ran on, and whether it says anything of them.

        Args:
            question: on which GPUs; none named: those of the caller's pod.
            peer: who says so; None: somebody with the token, over TCP.
            passed: whether it answered as it should.
            proof: stands for its engine and what that should answer; empty where nobody says.
            fault: what was found of the GPUs before an engine was started, in words; empty for what one answered.

        Raises:
            AskError: it can't be taken in, or not from this caller.
        """
        gpus, _ = await self._gpus(question, peer)
        if peer is not None and not gpus <= await self._trusted_with(question, peer):
            raise NotYours("only a pod that has a GPU tells of canaries on it")
        return gpus, self._parts.monitor.canary(gpus, passed=passed, proof=proof, fault=fault)

    async def _trusted_with(self, question: Question, peer: Peer) -> frozenset[str]:
        """Return the GPUs of which a caller may say what came of a canary: its pod's; all outside containers, to root and our own user."""
        until = asyncio.get_running_loop().time() + self._parts.limits.made_seconds
        caller = await self._parts.memory.caller(question, peer, until)
        if caller.reason:  # who can't be identified isn't the host's root
            return frozenset()
        owner = caller.scope.owner
        if owner == NOBODY and peer.uid in {0, os.getuid()}:
            return frozenset(self._parts.monitor.record.gpus)
        given = self._parts.pods.gpus_of(owner.pod) if owner.pod else None
        return frozenset(self._gpu_of(uuid) for uuid in given or ())

    async def _gpus(self, question: Question, peer: Peer | None) -> tuple[frozenset[str], str]:
        """Return the GPUs that a question is about, and why that isn't known."""
        if question.gpus:
            return frozenset(self._named(name) for name in question.gpus), ""
        until = asyncio.get_running_loop().time() + self._parts.limits.made_seconds
        caller = await self._parts.memory.caller(question, peer, until)
        pod = caller.scope.owner.pod
        if not pod:
            return frozenset(gpu.uuid for gpu in self._parts.monitor.verdict.gpus), ""
        given = self._parts.pods.gpus_of(pod)
        if given is None:
            return frozenset(), self._parts.pods.reason or "the kubelet has told of no GPU of the pod"
        return frozenset(self._gpu_of(uuid) for uuid in given), ""

    def _named(self, name: str) -> str:
        """Return the UUID of a GPU that is named by its UUID, by that of a MIG device of it, or by its index."""
        devices = self._parts.reader.listing.devices
        known = by_name(devices)
        if name in known:
            return self._gpu_of(known[name])
        if name in self._parts.monitor.record.gpus:  # it is lost, and remembered
            return name
        if devices:
            raise UnknownGpu(f"there is no GPU {name} on this node; it has {', '.join(sorted(known))}")
        return name

    def _gpu_of(self, uuid: str) -> str:
        """Return the UUID of the GPU that a device is, or is a part of."""
        return next((each.gpu for each in self._parts.reader.listing.devices if each.uuid == uuid), uuid)
