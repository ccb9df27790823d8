"""Election on a Lease object."""

import asyncio

from scaler.cluster.kube.election import ADDRESS_ANNOTATION, Elector, KubeLeases, Leadership
from scaler.cluster.kube.lease import Candidate, Timing
from scaler.cluster.kube.resources import LEASE
from tests.integration.kube.conftest import Cluster

TIMING = Timing(lease=3, renew=1.5, retry=0.2, attempt=1, request=1)


async def test_two_controllers_take_turns_in_terms_that_count_up(cluster: Cluster) -> None:
    began: list[tuple[str, int]] = []
    leading = asyncio.Event()

    async def serve(name: str) -> None:
        async def lead(leadership: Leadership) -> None:
            began.append((name, leadership.term.epoch))
            assert leadership.covers(TIMING.request)
            leading.set()
            await asyncio.Event().wait()

        await Elector(
            KubeLeases(cluster.client, cluster.namespace, "controller"),
            Candidate(identity=name, address=f"http://{name}"),
            TIMING,
        ).run(lead)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = {name: tasks.create_task(serve(name)) for name in ("a", "b")}
        await leading.wait()
        leading.clear()
        lease = await cluster.get(LEASE, "controller")
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == began[0]
        assert lease["metadata"]["annotations"] == {ADDRESS_ANNOTATION: f"http://{began[0][0]}"}
        running[began[0][0]].cancel()
        await leading.wait()
        running[began[1][0]].cancel()
    assert {name for name, _ in began} == {"a", "b"}
    assert [epoch for _, epoch in began] == [1, 2]
    assert not (await cluster.get(LEASE, "controller"))["spec"].get("holderIdentity")
