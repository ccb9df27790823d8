"""The API server of the tests answers as a real kube-apiserver 1.36 did: the recordings, replayed in their order.

Compared are status, content type, reason, message, details, and every field of every object and watch event, resource
versions included. Identities and times are the server's own: an identity must stand for the same one throughout.
"""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from tests.fakes.kube_api import KubeApi, Pace, User, serving
from tests.fakes.kube_api.store import Store

RECORDINGS = Path(__file__).parents[1] / "data" / "kube" / "kube-apiserver-1.36.jsonl"
SECOND = 0.02

TOKENS = {"auth.wrongToken": "Bearer wrong", "auth.anonymous": ""}
"""Exchanges that were made with other credentials than all others."""


def _compacted(store: Store) -> None:
    store.advance_to(276)
    store.compact()


MEANWHILE: Mapping[str, Callable[[Store], None]] = {
    "namespace.create": lambda store: store.advance_to(224),
    "pod.delete.graceful": lambda store: store.advance_to(254),
    "pod.watch.expired": _compacted,
}
"""What others wrote in the recorded cluster before an exchange: nothing of it is recorded but the gap."""


def _corrected(exchange: dict[str, Any]) -> dict[str, Any]:
    """Undo what the recorder did to two objects that it went on using: they show the values of the next exchange."""
    if exchange["name"] == "lease.put.renew":
        exchange["request"]["body"]["spec"]["holderIdentity"] = "a"  # as the answer says
    if exchange["name"] == "deployment.scale.get":
        exchange["response"]["body"]["spec"]["replicas"] = 2  # as it was created
    return exchange


EXCHANGES = [_corrected(json.loads(line)) for line in RECORDINGS.read_text().splitlines()]

SKIPPED_FIELDS = {"managedFields"}
"""Who wrote which field; nobody here reads it."""
SERVERS_OWN = {"creationTimestamp", "deletionTimestamp", "gitCommit", "gitTreeState", "buildDate"}
"""Times, and the build of the server."""
CUT_MESSAGES = {"pod.patch.immutableSpec": "\n"}
"""Messages that are compared up to a mark only: here follows a diff of Go structures."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Replay:
    """Keeps which recorded identity stands for which of this server's."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def translated(self, recorded: Any) -> Any:
        text = json.dumps(recorded)
        for theirs, ours in self.names.items():
            text = text.replace(theirs, ours)
        return json.loads(text)

    def compare(self, recorded: Any, found: Any, path: str = "") -> list[str]:
        key = path.rpartition(".")[2]
        if isinstance(recorded, dict) and isinstance(found, dict):
            return self._compare_objects(recorded, found, path)
        if isinstance(recorded, list) and isinstance(found, list):
            if len(recorded) != len(found):
                return [f"{path}: {len(recorded)} items were recorded, {len(found)} found: {found}"]
            pairs = enumerate(zip(recorded, found, strict=True))
            return [fault for i, (a, b) in pairs for fault in self.compare(a, b, f"{path}[{i}]")]
        if recorded == found or self._same(key, recorded, found):
            return []
        return [f"{path}: {recorded!r} was recorded, {found!r} found"]

    def _compare_objects(self, recorded: dict[str, Any], found: dict[str, Any], path: str) -> list[str]:
        theirs, ours = recorded.keys() - SKIPPED_FIELDS - SERVERS_OWN, found.keys() - SERVERS_OWN
        faults = [f"{path}: {key} is missing" for key in theirs - ours]
        faults += [f"{path}: {key} was not recorded" for key in ours - theirs]
        for key in recorded.keys() & found.keys():
            faults += self.compare(recorded[key], found[key], f"{path}.{key}")
        return faults

    def _same(self, key: str, recorded: Any, found: Any) -> bool:
        if not isinstance(recorded, str) or not isinstance(found, str):
            return False
        if TIME.fullmatch(recorded) and TIME.fullmatch(found):
            return True
        if key == "uid" or (key == "name" and recorded.startswith("p-9")):
            return self.names.setdefault(recorded, found) == found
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replayed() -> AsyncIterator[dict[str, list[str]]]:
    """The faults of each exchange, by its name."""
    api, replay, faults = KubeApi({"test": User(name="test")}, Pace(second=SECOND)), Replay(), {}
    async with serving(api) as url, aiohttp.ClientSession(url) as session:
        for exchange in EXCHANGES:
            MEANWHILE.get(exchange["name"], lambda _: None)(api.store)
            faults[exchange["name"]] = await replay_one(session, exchange, replay)
    yield faults


async def replay_one(session: aiohttp.ClientSession, exchange: dict[str, Any], replay: Replay) -> list[str]:
    name, wanted = exchange["name"], exchange["response"]
    request = replay.translated(exchange["request"])
    headers = {"Authorization": TOKENS.get(name, "Bearer test")}
    if request.get("contentType"):
        headers["Content-Type"] = request["contentType"]
    body = None if request.get("body") is None else json.dumps(request["body"])
    async with session.request(
        request["method"],
        URL(request["path"], encoded=True),
        data=body,
        headers={key: value for key, value in headers.items() if value},
        skip_auto_headers=["Content-Type"],
    ) as response:
        text = await response.text()
        faults = replay.compare(wanted["status"], response.status, "status")
        for header in ("Content-Type", "Retry-After", "Warning"):
            faults += replay.compare(wanted["headers"].get(header), response.headers.get(header), header)
    mark = CUT_MESSAGES.get(name)
    return faults + replay.compare(
        *(shortened(side, mark) for side in (expected(wanted, replay), found(text, wanted)))
    )


def expected(wanted: dict[str, Any], replay: Replay) -> Any:
    if "stream" in wanted:
        return replay.translated([line for line in wanted["stream"] if "endOfStreamAfterSeconds" not in line])
    return replay.translated(wanted["body"])


def found(text: str, wanted: dict[str, Any]) -> Any:
    if "stream" in wanted:
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text) if wanted["headers"]["Content-Type"] == "application/json" else text


def shortened(side: Any, mark: str | None) -> Any:
    if mark is None:
        return side
    return json.loads(re.sub(rf"{re.escape(json.dumps(mark)[1:-1])}(\\.|[^\"\\])*", "", json.dumps(side)))


@pytest.mark.parametrize("name", [exchange["name"] for exchange in EXCHANGES])
def test_the_answer_is_the_recorded_one(name: str, replayed: dict[str, list[str]]) -> None:
    assert replayed[name] == []


def test_every_exchange_has_a_name_of_its_own_and_is_replayed(replayed: dict[str, list[str]]) -> None:
    assert len(EXCHANGES) == len(replayed) == 84


# ---------------------------------------------------------------- what no recording shows


@pytest.fixture
async def api() -> AsyncIterator[tuple[KubeApi, aiohttp.ClientSession]]:
    """A server with a namespace."""
    users = {
        "test": User(name="test"),
        "reader": User(name="reader", may=lambda call: call.verb in {"get", "list", "watch"}),
    }
    made = KubeApi(users, Pace(second=SECOND))
    async with (
        serving(made) as url,
        aiohttp.ClientSession(url, headers={"Authorization": "Bearer test"}) as session,
    ):
        await answer(session, "POST", "/api/v1/namespaces", {"metadata": {"name": "pool"}})
        yield made, session


PODS = "/api/v1/namespaces/pool/pods"


async def answer(
    session: aiohttp.ClientSession,
    method: str,
    path: str,
    body: Any = None,
    content_type: str = "application/json",
) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    async with session.request(method, path, data=data, headers={"Content-Type": content_type}) as response:
        return response.status, json.loads(await response.text())


def pod(name: str, **labels: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "engine", "image": "x", "env": [{"name": "A", "value": "1"}]}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


Api = tuple[KubeApi, aiohttp.ClientSession]


async def test_pages_of_a_list_show_one_moment(api: Api) -> None:
    _, session = api
    for name in "abc":
        await answer(session, "POST", PODS, pod(name))
    _, first = await answer(session, "GET", f"{PODS}?limit=2")
    await answer(session, "DELETE", f"{PODS}/c")
    await answer(session, "POST", PODS, pod("d"))
    _, second = await answer(session, "GET", f"{PODS}?limit=2&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in first["items"] + second["items"]] == ["a", "b", "c"]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_a_page_that_was_compacted_has_expired(api: Api) -> None:
    server, session = api
    for name in "abc":
        await answer(session, "POST", PODS, pod(name))
    _, first = await answer(session, "GET", f"{PODS}?limit=2")
    server.store.compact()
    status, body = await answer(session, "GET", f"{PODS}?limit=2&continue={first['metadata']['continue']}")
    assert (status, body["reason"]) == (410, "Expired")


async def test_a_reader_may_write_nothing(api: Api) -> None:
    _, session = api
    session.headers["Authorization"] = "Bearer reader"
    assert (await answer(session, "GET", PODS))[0] == 200
    status, body = await answer(session, "POST", PODS, pod("a"))
    assert (status, body["reason"]) == (403, "Forbidden")


async def test_lists_with_keys_are_merged_by_a_strategic_patch(api: Api) -> None:
    _, session = api
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployments = "/apis/apps/v1/namespaces/pool/deployments"
    await answer(session, "POST", deployments, {"metadata": {"name": "w"}, "spec": spec})
    more = {"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}]}]}
    patch = {"spec": {"template": {"spec": more}}}
    _, body = await answer(
        session, "PATCH", f"{deployments}/w", patch, "application/strategic-merge-patch+json"
    )
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert (container["image"], [each["name"] for each in container["env"]]) == ("x", ["A", "B"])
    assert body["metadata"]["generation"] == 2


async def test_an_apply_takes_back_what_it_no_longer_says_and_respects_other_appliers(api: Api) -> None:
    _, session = api
    path, kind = "/api/v1/namespaces/pool/configmaps/c", {"apiVersion": "v1", "kind": "ConfigMap"}
    apply = "application/apply-patch+yaml"

    async def applied(manager: str, data: dict[str, str]) -> tuple[int, Any]:
        body = {**kind, "metadata": {"name": "c"}, "data": data}
        return await answer(session, "PATCH", f"{path}?fieldManager={manager}", body, apply)

    await applied("a", {"one": "1", "two": "2"})
    await applied("b", {"three": "3"})
    assert (await applied("a", {"one": "1"}))[1]["data"] == {"one": "1", "three": "3"}
    assert (await applied("a", {"three": "4"}))[0] == 409


async def test_an_object_with_a_finalizer_goes_when_it_has_lost_it(api: Api) -> None:
    _, session = api
    path = "/api/v1/namespaces/pool/configmaps"
    await answer(session, "POST", path, {"metadata": {"name": "c", "finalizers": ["x.dev/y"]}})
    await answer(session, "DELETE", f"{path}/c")
    assert "deletionTimestamp" in (await answer(session, "GET", f"{path}/c"))[1]["metadata"]
    merge = {"metadata": {"finalizers": None}}
    await answer(session, "PATCH", f"{path}/c", merge, "application/merge-patch+json")
    assert (await answer(session, "GET", f"{path}/c"))[0] == 404


def test_it_is_served_by_a_command_that_prints_a_kubeconfig() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.fakes.kube_api"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "}\n")
        config = json.loads("".join(lines) + "}")
        process.terminate()
    server = config["clusters"][0]["cluster"]["server"]
    assert server.startswith("http://127.0.0.1:")
