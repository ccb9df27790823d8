"""One pod's life on a node: its containers in their order, what is told of it, and its end."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from scaler.cluster.kube.resources import POD
from scaler.cluster.kube.times import seconds_text
from scaler.errors import ClusterError, Conflict, NotFound
from tests.fakes.kube_calls import Object
from tests.fakes.kubelet.containers import Runner
from tests.fakes.kubelet.devices import Devices
from tests.fakes.kubelet.environment import Unmakeable
from tests.fakes.kubelet.making import PodMaker, Setting
from tests.fakes.kubelet.status import ContainerState, PodState, status_of

log = structlog.get_logger(__name__)
_LEAST_SECONDS = 2.0
"""What a pod gets whose object is gone already, and a sidecar for which nothing of the grace is left."""
_RETRY_SECONDS = 0.2


class PodWorker:
    """Runs one pod until it is gone; `run` ends then.

    Args:
        pod: the object, bound to the node.
        setting: what all pods have in common.
        devices: the node's GPUs.
    """

    def __init__(self, pod: Object, setting: Setting, devices: Devices) -> None:
        self._pod = pod
        self._setting = setting
        self._devices = devices
        metadata, spec = pod["metadata"], pod["spec"]
        self.uid: str = metadata["uid"]
        self._name: tuple[str, str] = metadata["namespace"], metadata["name"]
        self._dirty, self._stale = asyncio.Event(), asyncio.Event()
        self._leaving = asyncio.Event()
        self._gone = False
        self._grace = float(spec.get("terminationGracePeriodSeconds", 30))
        self._told: Object = {}
        self._told_in = 0
        self._maker = PodMaker(setting, lambda: self._pod)
        policy = spec.get("restartPolicy", "Always")
        self._init = [self._runner(each, _policy(each, policy)) for each in spec.get("initContainers") or ()]
        self._main = [self._runner(each, policy) for each in spec["containers"]]
        self._state = PodState(
            init=[each.state for each in self._init],
            main=[each.state for each in self._main],
            host_ip=setting.network.host_ip,
            started=seconds_text(time.time()),
            gates=[each["conditionType"] for each in spec.get("readinessGates") or ()],
        )
        self.update(pod)

    def _runner(self, spec: Object, policy: str) -> Runner:
        sidecar = spec.get("restartPolicy") == "Always"
        state = ContainerState(name=spec["name"], image=spec["image"], sidecar=sidecar)
        return Runner(spec, state, policy, self._maker, self._setting.pace, self._dirty.set)

    @property
    def address_key(self) -> str:
        """By what the network knows it: a pod of the same name comes only after this one."""
        return "/".join(self._name)

    # ------------------------------------------------------------ what is heard

    def update(self, pod: Object) -> None:
        """Take over a newer version of the object."""
        metadata, before = pod["metadata"], self._pod["metadata"]
        self._pod = pod
        self._dirty.set()
        if int(metadata["resourceVersion"]) >= self._told_in and not self._stands():
            self._told = {}  # somebody else has said otherwise
        if any(metadata.get(key) != before.get(key) for key in ("labels", "annotations")):
            self._stale.set()
        if metadata.get("deletionTimestamp"):
            self._leave(float(metadata.get("deletionGracePeriodSeconds") or 0))

    def removed(self) -> None:
        """The object is gone: somebody has forced it out."""
        self._gone = True
        self._leave(_LEAST_SECONDS)

    def _leave(self, grace: float) -> None:
        if not self._leaving.is_set():
            self._grace = grace
            self._leaving.set()
        elif grace < self._grace:
            self._grace = grace
            asyncio.get_running_loop().call_later(grace, self.kill)

    def kill(self) -> None:
        """SIGKILL all its containers, now."""
        for runner in (*self._init, *self._main):
            runner.kill()

    # ------------------------------------------------------------ its life

    async def run(self) -> None:
        """Run it: until its object is gone."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._keep_telling()), tasks.create_task(self._keep_files())]
            try:
                await self._live()
                await self._leaving.wait()
            finally:
                for helper in helpers:
                    helper.cancel()
        self._state.killed = True
        await self._clear_away()

    async def _live(self) -> None:
        """Run the containers until all have ended for good."""
        try:
            gpus = self._devices.take(self._pod, await self._maker.claimed())
        except Unmakeable as error:
            self._state.failure = error.reason, str(error)
            self._dirty.set()
            return
        place = await self._setting.network.attach(self.address_key)
        self._maker.settle(place, gpus)
        self._state.ip = place.ip
        self._dirty.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(self._end_on_order())
                await self._start_in_order(tasks)
                if not self._leaving.is_set():
                    ending.cancel()
                    await self._end(self._grace)
        except BaseException:
            self.kill()
            raise

    async def _start_in_order(self, tasks: asyncio.TaskGroup) -> None:
        for runner in self._init:
            if self._leaving.is_set():
                return
            tasks.create_task(runner.run())
            await self._either(runner.started if runner.state.sidecar else runner.over)
            if not runner.state.sidecar and not runner.state.completed:
                return
        if self._leaving.is_set():
            return
        for runner in self._main:
            runner.state.waiting = "ContainerCreating"
        await asyncio.wait([tasks.create_task(runner.run()) for runner in self._main])

    async def _either(self, event: asyncio.Event) -> None:
        """Wait for an event, or for the order to end."""
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(each.wait()) for each in (event, self._leaving)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _end_on_order(self) -> None:
        await self._leaving.wait()
        await self._end(self._grace)

    async def _end(self, grace: float) -> None:
        """End the containers, and then the sidecars, the last one first."""
        ends = time.monotonic() + grace
        async with asyncio.TaskGroup() as tasks:
            for runner in (*self._main, *self._init):
                if not runner.state.sidecar:
                    tasks.create_task(runner.stop(grace))
        for runner in reversed(self._init):
            if runner.state.sidecar:
                await runner.stop(max(_LEAST_SECONDS, ends - time.monotonic()))

    async def _clear_away(self) -> None:
        """Give back what it had, tell its last state, and have the object removed."""
        await self._setting.network.detach(self.address_key)
        self._devices.give_back(self.uid)
        await asyncio.to_thread(self._maker.remove)
        while not self._gone:
            try:
                await self._tell()
                await self._setting.calls.delete(POD, *self._name, uid=self.uid, grace=0)
            except (NotFound, Conflict):
                return
            except ClusterError as error:
                log.info("the pod can't be removed yet", pod=self._name, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    # ------------------------------------------------------------ what is told

    async def _keep_telling(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._tell()
            except (NotFound, Conflict):
                pass  # the watch says what has become of it
            except ClusterError as error:
                log.info("a pod's status can't be written yet", pod=self._name, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                self._dirty.set()

    async def _tell(self) -> None:
        """Write the status if it says anything new."""
        status = status_of(self._state, self._conditions(), seconds_text(time.time()))
        if status == self._told:
            return
        patch = {"metadata": {"uid": self.uid}, "status": status}
        written = await self._setting.calls.strategic(POD, *self._name, patch, "status")
        self._told, self._told_in = status, int(written["metadata"]["resourceVersion"])

    def _stands(self) -> bool:
        """Whether the object still shows the conditions that were told last."""
        held = {
            each["type"]: each["status"] for each in (self._pod.get("status") or {}).get("conditions") or ()
        }
        told = self._told.get("conditions") or ()
        return all(held.get(each["type"]) == each["status"] for each in told)

    def _conditions(self) -> Sequence[Object]:
        """Return others' conditions as they are on the object, and our own as we have told them last."""
        own = self._told.get("conditions") or ()
        kinds = {each["type"] for each in own}
        held = (self._pod.get("status") or {}).get("conditions") or ()
        return [*(each for each in held if each["type"] not in kinds), *own]

    async def _keep_files(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._setting.pace.refresh):
                    await self._stale.wait()
            self._stale.clear()
            if self._state.ip:
                with suppress(
                    Unmakeable, ClusterError
                ):  # what was there stays; a container's start tells of it
                    await self._maker.refresh()


def _policy(container: Object, policy: str) -> str:
    """How an init container is started again; a sidecar always is."""
    if container.get("restartPolicy") == "Always":
        return "Always"
    return "Never" if policy == "Never" else "OnFailure"
