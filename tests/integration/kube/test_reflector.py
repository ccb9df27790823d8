"""The copy stays current whatever the server does, and says how old it is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from scaler.cluster.kube.reflector import Reflector, Timing
from scaler.cluster.kube.resources import CONFIG_MAP, DEPLOYMENT, NODE, POD, Collection
from scaler.cluster.kube.views import Pod, config_from_json, node_from_json, pod_from_json, workload_from_json
from tests.fakes.kube_api import Call, Cut, KubeApi, User
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import POD as PODS
from tests.integration.kube.conftest import FLEET, Cluster
from warmpool.seats import FLEET_LABEL

QUICK = Timing(call=5, watch=(60, 60), idle=5, backoff=(0.01, 0.05), short=0.05)
WAIT = 10.0


def pods_of(cluster: Cluster, timing: Timing = QUICK) -> Reflector[Pod]:
    source = Collection(
        kind=POD, namespace=cluster.namespace, selectors={"labelSelector": f"{FLEET_LABEL}={FLEET}"}
    )
    return Reflector(cluster.client, source, pod_from_json, timing)


@asynccontextmanager
async def running(reflector: Reflector[Pod]) -> AsyncIterator[Reflector[Pod]]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        async with asyncio.timeout(WAIT):
            await reflector.wait_synced()
        yield reflector
        task.cancel()


async def until(reflector: Reflector[Pod], condition: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    end = reflector.subscribe(changed.set)
    try:
        async with asyncio.timeout(WAIT):
            while not condition():
                await changed.wait()
                changed.clear()
    finally:
        end()


def names(reflector: Reflector[Pod]) -> set[str]:
    return {pod.seat.name for pod in reflector.values()}


async def restarted(reflector: Reflector[Pod], cause: str, times: int = 1) -> None:
    async with asyncio.timeout(WAIT):
        while reflector.restarts[cause] < times:
            await asyncio.sleep(0.005)


def watches(call: Call) -> bool:
    return call.verb == "watch"


def lists(call: Call) -> bool:
    return call.verb == "list"


# ---------------------------------------------------------------- on any server


async def test_it_follows_pods_as_they_come_change_and_go(cluster: Cluster) -> None:
    await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        assert names(pods) == {"seat-0"}
        await cluster.pod("seat-1")
        await until(pods, lambda: names(pods) == {"seat-0", "seat-1"})
        await cluster.patch(POD, "seat-1", {"metadata": {"labels": {"serving.emberpool.dev/chat": "true"}}})
        await until(pods, lambda: any(pod.seat.serving for pod in pods.values()))
        await cluster.delete(POD, "seat-0")
        await until(pods, lambda: names(pods) == {"seat-1"})


async def test_a_pod_that_leaves_the_selector_is_gone(cluster: Cluster) -> None:
    await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        await cluster.patch(POD, "seat-0", {"metadata": {"labels": {FLEET_LABEL: "others"}}})
        await until(pods, lambda: not names(pods))
        await cluster.patch(POD, "seat-0", {"metadata": {"labels": {FLEET_LABEL: FLEET}}})
        await until(pods, lambda: names(pods) == {"seat-0"})


async def test_a_list_is_read_page_by_page(cluster: Cluster) -> None:
    for number in range(5):
        await cluster.pod(f"seat-{number}")
    pods = pods_of(cluster)
    pods._page = 2
    async with running(pods):
        assert len(pods) == 5


async def test_nodes_sizes_and_policies_are_reflected_too(cluster: Cluster, node: str) -> None:
    await cluster.create(CONFIG_MAP, {"metadata": {"name": "policies"}, "data": {"chat.yaml": "a: 1"}})
    workload, here = await cluster.workload(), cluster.namespace
    nodes = Reflector(cluster.client, Collection(kind=NODE), node_from_json, QUICK)
    configs = Reflector(cluster.client, Collection(kind=CONFIG_MAP, namespace=here), config_from_json, QUICK)
    sizes = Reflector(cluster.client, Collection(kind=DEPLOYMENT, namespace=here), workload_from_json, QUICK)
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(each.run()) for each in (nodes, configs, sizes)]
        async with asyncio.timeout(WAIT):
            for each in (nodes, configs, sizes):
                await each.wait_synced()
        found, config, size = (
            nodes.get(node),
            configs.get(f"{here}/policies"),
            sizes.get(f"{here}/{workload}"),
        )
        for task in following:
            task.cancel()
    assert found is not None
    assert "other/owner" in {taint.key for taint in found.taints}
    assert config is not None
    assert dict(config.data) == {"chat.yaml": "a: 1"}
    assert size is not None
    assert size.replicas == 0


async def test_a_write_is_seen_before_the_watch_tells_of_it(cluster: Cluster) -> None:
    await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        pods.learn(
            await cluster.patch(
                POD, "seat-0", {"metadata": {"labels": {"serving.emberpool.dev/chat": "true"}}}
            )
        )
        assert [set(pod.seat.serving) for pod in pods.values()] == [{"chat"}]


async def test_what_a_write_returned_after_the_pods_end_is_not_taken_in(cluster: Cluster) -> None:
    late = await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        await cluster.delete(POD, "seat-0")
        await until(pods, lambda: not names(pods))
        pods.learn(late)
        assert names(pods) == set()


# ---------------------------------------------------------------- on a server that misbehaves


class Seen:
    """What a reflector's subscriber has seen of one pod, one after the other."""

    def __init__(self, reflector: Reflector[Pod], key: str) -> None:
        self.versions: list[int] = []
        self._reflector, self._key = reflector, key
        reflector.subscribe(self._look)

    def _look(self) -> None:
        pod = self._reflector.get(self._key)
        self.versions.append(0 if pod is None else int(pod.seat.version))


@pytest.mark.parametrize("fleet", [FLEET, "others"], ids=["changed", "left and came back"])
async def test_what_is_known_already_is_not_undone_by_what_the_watch_tells_late(
    api: KubeApi, cluster: Cluster, fleet: str
) -> None:
    await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        seen = Seen(pods, f"{cluster.namespace}/seat-0")
        api.faults.spacing = 0.05
        await cluster.patch(POD, "seat-0", {"metadata": {"labels": {FLEET_LABEL: fleet, "x": "1"}}})
        pods.learn(
            await cluster.patch(POD, "seat-0", {"metadata": {"labels": {FLEET_LABEL: FLEET, "x": "2"}}})
        )
        await cluster.pod("seat-1")
        await until(pods, lambda: len(pods) == 2)
        assert len(seen.versions) >= 2
        assert seen.versions == sorted(seen.versions)


async def test_what_a_write_returned_while_a_list_was_read_is_not_undone_by_the_list(
    api: KubeApi, cluster: Cluster
) -> None:
    for number in range(5):
        await cluster.pod(f"seat-{number}")
    pods = pods_of(cluster)
    async with running(pods):
        seen, key, pages = Seen(pods, f"{cluster.namespace}/seat-0"), (cluster.namespace, "seat-0"), 0

        def write_between_pages(call: Call) -> bool:
            nonlocal pages
            pages += lists(call)
            first = api.store.get(PODS, key)
            if lists(call) and pages == 2 and first is not None:
                pods.learn(api.store.put(PODS, key, {**first.body, "status": {"phase": "Running"}}).body)
            return False

        pods._page = 2
        api.faults.cut(Cut.BEFORE, write_between_pages)
        api.store.advance_to(api.store.version + 1)
        api.store.compact()
        api.faults.drop_watches()
        await restarted(pods, "expired")
        await cluster.pod("seat-5")
        await until(pods, lambda: len(pods) == 6)
        assert len(seen.versions) >= 2
        assert seen.versions == sorted(seen.versions)


async def test_nothing_is_synced_before_the_first_list(api: KubeApi, cluster: Cluster) -> None:
    api.faults.answer(Answer(status=500), lists)
    pods = pods_of(cluster)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(pods.run())
        await restarted(pods, "unreachable", 2)
        assert not pods.synced
        assert pods.age == float("inf")
        api.faults.clear()
        async with asyncio.timeout(WAIT):
            await pods.wait_synced()
        assert pods.age < WAIT
        task.cancel()


async def test_who_may_not_list_goes_on_asking_until_the_role_is_mended(
    api: KubeApi, cluster: Cluster
) -> None:
    api.users["test"] = User(name="test", may=lambda call: not lists(call))
    pods = pods_of(cluster)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(pods.run())
        await restarted(pods, "forbidden", 2)
        assert not pods.synced
        api.users["test"] = User(name="test")
        async with asyncio.timeout(WAIT):
            await pods.wait_synced()
        task.cancel()


async def test_a_server_that_asks_to_wait_is_not_asked_before(api: KubeApi, cluster: Cluster) -> None:
    api.faults.answer(Answer(status=429, retry_after="0.3"), lists, times=1)
    began = asyncio.get_running_loop().time()
    async with running(pods_of(cluster)):
        assert asyncio.get_running_loop().time() - began >= 0.3


async def test_a_watch_that_ends_goes_on_where_it_was(api: KubeApi, cluster: Cluster) -> None:
    async with running(pods_of(cluster)) as pods:
        await cluster.pod("seat-0")
        await until(pods, lambda: len(pods) == 1)
        listed = sum(map(lists, api.calls))
        api.faults.drop_watches()
        await restarted(pods, "ended")
        await cluster.pod("seat-1")
        await until(pods, lambda: len(pods) == 2)
        assert sum(map(lists, api.calls)) == listed


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_without_a_pause(
    api: KubeApi, cluster: Cluster
) -> None:
    async with running(pods_of(cluster, Timing(backoff=(0.05, 0.05), short=5))) as pods:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(WAIT):
            while pods.restarts["unreachable"] < 4:
                api.faults.drop_watches()
                await asyncio.sleep(0.005)
        passed = asyncio.get_running_loop().time() - began
        assert pods.restarts["unreachable"] <= passed / 0.025 + 1


@pytest.mark.parametrize("as_status", [False, True], ids=["in the stream", "as status"])
async def test_a_version_that_is_too_old_leads_to_a_new_list(
    api: KubeApi, cluster: Cluster, *, as_status: bool
) -> None:
    async with running(pods_of(cluster)) as pods:
        api.faults.answer(Answer(status=503), watches)
        api.faults.drop_watches()
        await restarted(pods, "unreachable")
        await cluster.pod("seat-0")
        api.store.compact()
        api.faults.clear()
        api.faults.gone_as_status = as_status
        await until(pods, lambda: names(pods) == {"seat-0"})
        assert pods.restarts["expired"] == 1


async def test_a_watch_that_is_always_too_old_is_not_listed_in_a_hot_loop(
    api: KubeApi, cluster: Cluster
) -> None:
    async with running(pods_of(cluster, Timing(backoff=(0.05, 0.05)))) as pods:
        listed = sum(map(lists, api.calls))
        api.store.advance_to(api.store.version + 100)
        api.store.compact()
        began = asyncio.get_running_loop().time()

        def expire(call: Call) -> bool:
            if watches(call):
                api.store.advance_to(api.store.version + 1)
                api.store.compact()
            return False

        api.faults.cut(Cut.BEFORE, expire)
        api.faults.drop_watches()
        await restarted(pods, "expired", 5)
        passed = asyncio.get_running_loop().time() - began
        assert sum(map(lists, api.calls)) - listed <= passed / 0.025 + 2


async def test_a_page_whose_list_has_expired_begins_a_new_list(api: KubeApi, cluster: Cluster) -> None:
    for number in range(5):
        await cluster.pod(f"seat-{number}")
    pods, pages = pods_of(cluster), 0

    def forget(call: Call) -> bool:
        nonlocal pages
        if lists(call):
            pages += 1
            if pages == 2:
                api.store.compact()
        return False

    api.faults.cut(Cut.BEFORE, forget)
    pods._page = 2
    async with running(pods):
        assert len(pods) == 5
        assert pods.restarts["expired"] == 1


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        pytest.param(Answer(status=502, html=True), 3, id="a proxy's page"),
        pytest.param(Answer(status=200, html=True), 2, id="a page with status 200"),
    ],
)
async def test_an_answer_of_another_kind_is_no_watch(
    api: KubeApi, cluster: Cluster, answer: Answer, times: int
) -> None:
    async with running(pods_of(cluster)) as pods:
        api.faults.answer(answer, watches, times=times)
        api.faults.drop_watches()
        await restarted(pods, "unreachable", times)
        await cluster.pod("seat-0")
        await until(pods, lambda: names(pods) == {"seat-0"})


async def test_json_of_another_kind_with_status_200_is_no_empty_list(api: KubeApi, cluster: Cluster) -> None:
    await cluster.pod("seat-0")
    api.faults.answer(Answer(status=200), lists, times=2)
    async with running(pods_of(cluster)) as pods:
        assert names(pods) == {"seat-0"}
        assert pods.restarts["unreachable"] == 2


async def test_half_an_event_is_no_event(api: KubeApi, cluster: Cluster) -> None:
    async with running(pods_of(cluster)) as pods:
        api.faults.tear = True
        await cluster.pod("seat-0")
        await restarted(pods, "unreachable")
        api.faults.tear = False
        await until(pods, lambda: names(pods) == {"seat-0"})


async def test_a_watch_that_says_nothing_is_given_up(api: KubeApi, cluster: Cluster) -> None:
    async with running(pods_of(cluster, Timing(idle=0.1, backoff=(0.01, 0.05)))) as pods:
        api.faults.silent = True
        await cluster.pod("seat-0")
        await restarted(pods, "unreachable")
        assert pods.age >= 0.1
        api.faults.silent = False
        await until(pods, lambda: names(pods) == {"seat-0"})


async def test_bookmarks_keep_a_quiet_watch_alive_and_young(api: KubeApi, cluster: Cluster) -> None:
    async with running(pods_of(cluster, Timing(idle=0.5, watch=(60, 60)))) as pods:
        await restarted(pods, "ended")  # 60 of the server's seconds, 1.2 of ours
        assert pods.restarts["unreachable"] == 0
        assert pods.age < 0.5


async def test_a_cut_connection_is_opened_again(api: KubeApi, cluster: Cluster) -> None:
    async with running(pods_of(cluster)) as pods:
        api.faults.cut(Cut.BEFORE, watches)
        api.faults.drop_watches()
        await restarted(pods, "unreachable", 2)
        api.faults.clear()
        await cluster.pod("seat-0")
        await until(pods, lambda: names(pods) == {"seat-0"})


async def test_a_list_that_is_older_than_what_is_known_is_not_believed(
    api: KubeApi, cluster: Cluster
) -> None:
    await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        api.store.freeze_reads()
        await cluster.pod("seat-1")
        await until(pods, lambda: len(pods) == 2)
        api.store.compact()
        api.store.advance_to(api.store.version + 1)
        api.store.compact()
        api.faults.drop_watches()
        await restarted(pods, "unreachable")
        assert len(pods) == 2
        api.store.thaw_reads()
        await cluster.pod("seat-2")
        await until(pods, lambda: len(pods) == 3)


async def test_versions_that_begin_anew_are_believed_in_the_end(api: KubeApi, cluster: Cluster) -> None:
    await cluster.pod("seat-0")
    async with running(pods_of(cluster)) as pods:
        api.store.freeze_reads()
        api.store.advance_to(api.store.version + 1000)
        await cluster.pod("seat-1")
        await until(pods, lambda: len(pods) == 2)
        api.store.compact()
        api.store.advance_to(api.store.version + 1)
        api.store.compact()
        api.faults.drop_watches()
        await until(pods, lambda: names(pods) == {"seat-0"})
