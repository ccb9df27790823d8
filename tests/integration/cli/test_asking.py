"""Asking an API server: whole lists in pages, and the controller behind the server's proxy."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import Request
from scaler.cluster.kube.errors import Expired, Forbidden, Rejected
from scaler.cluster.kube.resources import POD, Collection, Kind
from scaler.doctor.asking import Asker, NoController, Question
from scaler.errors import Unreachable
from tests.fakes.kube_api import Call, Cut, User
from tests.fakes.kube_api.faults import Answer
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.fake_controller import FakeController, serving
from tests.integration.cli.test_cluster import pod

PODS = Collection(kind=POD, namespace="serving")


@pytest.fixture
def there() -> Iterator[FakeCluster]:
    users = {
        "admin": User(name="admin"),
        "nobody": User(name="nobody", may=lambda call: call.subresource != "proxy"),
    }
    with serving(FakeController()) as controller, cluster(users, controller) as made:
        made.create("Pod", pod("spares-0"))
        yield made


@asynccontextmanager
async def asking(there: FakeCluster, path: Path, token: str = "admin") -> AsyncIterator[Asker]:
    config = written(path / "config", there, token)
    access = await find_access(AccessOptions(kubeconfig=config), os.environ)
    async with Asker(access, {"Emberpool-Token": "secret"}) as asker:
        yield asker


def is_pods(call: Call) -> bool:
    return call.resource == "pods"


async def test_a_long_list_comes_in_pages_and_each_object_says_its_kind(
    there: FakeCluster, tmp_path: Path
) -> None:
    for index in range(1100):
        there.create("Pod", pod(f"more-{index}"))
    async with asking(there, tmp_path) as asker:
        found = await asker.listed(PODS)
    assert len({each["metadata"]["name"] for each in found}) == 1101
    assert {(each["apiVersion"], each["kind"]) for each in found} == {("v1", "Pod")}
    assert len([call for call in there.calls() if call.verb == "list"]) == 3


async def test_a_list_whose_pages_expire_is_begun_anew(there: FakeCluster, tmp_path: Path) -> None:
    there.api.faults.answer(Answer(status=410), is_pods, times=1)
    async with asking(there, tmp_path) as asker:
        assert len(await asker.listed(PODS)) == 1
        there.api.faults.answer(Answer(status=410), is_pods)
        with pytest.raises(Expired):
            await asker.listed(PODS)


async def test_a_kind_that_the_server_lacks(there: FakeCluster, tmp_path: Path) -> None:
    kind = Kind(group="nowhere.dev", version="v1", plural="things", name="Thing")
    async with asking(there, tmp_path) as asker:
        with pytest.raises(Rejected):
            await asker.listed(Collection(kind=kind))


async def test_an_answer_is_returned_whatever_its_status(there: FakeCluster, tmp_path: Path) -> None:
    there.api.faults.answer(Answer(status=502, html=True), is_pods, times=1)
    async with asking(there, tmp_path) as asker:
        answer = await asker.answer(Request(path=PODS.path))
        assert (answer.status, answer.body, answer.of_api_server) == (502, None, False)
        assert answer.refusal.startswith("<html>")
        assert answer.date
        there.api.faults.cut(Cut.BEFORE, is_pods, times=2)  # an HTTP client tries a GET once more by itself
        with pytest.raises(Unreachable):
            await asker.answer(Request(path=PODS.path))


async def test_the_controller_is_the_first_that_is_there(there: FakeCluster, tmp_path: Path) -> None:
    assert there.controller is not None
    there.create("Service", {"metadata": {"name": "emberpool-controller"}}, "emberpool")
    there.controller.say("/v1/status", {"ready": True})
    async with asking(there, tmp_path) as asker:
        answer = await asker.controller(Question(path="/v1/status"), ("serving", "serving", "emberpool"))
    assert (answer.status, answer.body) == (200, {"ready": True})
    asked = [call.namespace for call in there.calls() if call.subresource == "proxy"]
    assert asked == ["serving", "emberpool"]


async def test_the_controllers_own_refusal_is_no_lack_of_a_controller(
    there: FakeCluster, tmp_path: Path
) -> None:
    assert there.controller is not None
    there.create("Service", {"metadata": {"name": "emberpool-controller"}})
    there.controller.say("POST /v1/orders", {"error": {"code": "Conflict", "message": "no"}}, 409)
    async with asking(there, tmp_path) as asker:
        question = Question(path="/v1/orders", method="POST", body={"a": 1})
        answer = await asker.controller(question, ("serving", "emberpool"))
    assert (answer.status, answer.refusal) == (409, "no")
    ((body, headers),) = there.controller.ordered
    assert (body, headers["Emberpool-Token"]) == ({"a": 1}, "secret")


async def test_no_controller_says_why(there: FakeCluster, tmp_path: Path) -> None:
    async with asking(there, tmp_path) as asker:
        with pytest.raises(NoController, match='services "emberpool-controller" not found'):
            await asker.controller(Question(path="/v1/seats"), ("serving", "emberpool"))
        with pytest.raises(NoController, match="no namespace to look in"):
            await asker.controller(Question(path="/v1/seats"), ())
    there.create("Service", {"metadata": {"name": "emberpool-controller"}})
    async with asking(there, tmp_path, "nobody") as asker:
        with pytest.raises(NoController, match="is forbidden"):
            await asker.controller(Question(path="/v1/seats"), ("serving",))
    assert there.controller is not None
    there.api.users["nobody"] = User(name="nobody", may=lambda call: call.namespace == "emberpool")
    there.create("Service", {"metadata": {"name": "emberpool-controller"}}, "emberpool")
    there.controller.say("/v1/seats", {"items": []})
    async with asking(there, tmp_path, "nobody") as asker:
        answer = await asker.controller(Question(path="/v1/seats"), ("serving", "emberpool"))
    assert answer.namespace == "emberpool", "what may not be asked for in one namespace may be in another"
    there.controller.shutdown()
    there.controller.server_close()
    async with asking(there, tmp_path) as asker:
        call = "GET /api/v1/namespaces/serving/services/emberpool-controller:http/proxy with status 503"
        with pytest.raises(NoController, match=f"answers {call}: error trying to reach service"):
            await asker.controller(Question(path="/v1/seats"), ("serving",))


async def test_what_may_not_be_listed(there: FakeCluster, tmp_path: Path) -> None:
    there.api.users["nobody"] = User(name="nobody", may=lambda _: False)
    async with asking(there, tmp_path, "nobody") as asker:
        with pytest.raises(Forbidden):
            await asker.listed(PODS)
