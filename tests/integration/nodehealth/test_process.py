"""The node agent as a process: where it listens, who gets in, how it ends, and where there is no GPU."""

import asyncio
import os
import signal
import socket
import stat
from dataclasses import replace
from pathlib import Path

import aiohttp
import pynvml
import pytest

from scaler.cli.app import main
from tests.fakes.nvml_library import FakeLibrary
from tests.fakes.ports import free_port
from tests.fakes.proc_tree import ProcTree
from tests.integration.nodehealth.conftest import GB, MINE, TOKEN, YOURS, A, Caller, Json, Node
from warmpool.engines.deadline import Deadline
from warmpool.errors import StartFailed
from warmpool.nodehealth.app import NodeAgentOptions, NoGpu, serve, serve_until, unix_listener
from warmpool.nodehealth.client import NodeAgent, NoMemory
from warmpool.nodehealth.local import local_node_agent
from warmpool.nodehealth.metrics import FAMILIES
from warmpool.nodehealth.nvml import DriverNvml
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.reader import Limits

# ---------------------------------------------------------------------- TCP


@pytest.fixture
def tcp(node: Node) -> NodeAgentOptions:
    return replace(node.options, port=free_port(), token=TOKEN)


async def over_tcp(options: NodeAgentOptions, path: str, token: str = TOKEN) -> tuple[int, Json]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"http://127.0.0.1:{options.port}{path}") as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("token", ["", "wrong", "sécret"])
@pytest.mark.parametrize("path", ["/v1/memory", "/metrics", "/nothing"])
async def test_on_tcp_nobody_gets_in_without_the_token(
    node: Node, tcp: NodeAgentOptions, token: str, path: str
) -> None:
    async with node.agent(tcp):
        status, body = await over_tcp(tcp, path, token)
    assert (status, body["error"]["code"]) == (401, "Unauthorized")


async def test_with_the_token_a_pod_that_is_named_is_told_of(node: Node, tcp: NodeAgentOptions) -> None:
    async with node.agent(tcp):
        _, mine = await over_tcp(tcp, f"/v1/memory?pod={MINE}&gpu=0")
        _, yours = await over_tcp(tcp, f"/v1/memory?pod={YOURS}&gpu=0")
    assert [each["ids"] for each in mine["gpus"][0]["processes"]] == [[8, 6, 1], [9, 6, 1]]
    assert [each["pid"] for each in yours["gpus"][0]["processes"]] == [90]


async def test_with_the_token_processes_are_named_by_the_nodes_ids(node: Node, tcp: NodeAgentOptions) -> None:
    async with node.agent(tcp):
        _, body = await over_tcp(tcp, "/v1/memory?pid=65&gpu=0")
    assert [each["pid"] for each in body["gpus"][0]["processes"]] == [70, 71]
    assert body["verified"]


async def test_with_the_token_and_nobody_named_there_are_totals(node: Node, tcp: NodeAgentOptions) -> None:
    async with node.agent(tcp):
        _, body = await over_tcp(tcp, "/v1/memory?gpu=0")
    assert (body["verified"], body["gpus"][0]["processes"]) == (False, [])
    assert body["gpus"][0]["othersBytes"] == 9 * GB


async def test_health_is_told_to_everybody(node: Node, tcp: NodeAgentOptions) -> None:
    async with node.agent(tcp):
        status, body = await over_tcp(tcp, "/healthz", "")
    assert (status, body["status"], body["nvml"]) == (200, "Ok", "Open")


async def test_a_client_with_the_token_is_served_over_tcp(node: Node, tcp: NodeAgentOptions) -> None:
    async with node.agent(tcp):
        client = NodeAgent(f"http://127.0.0.1:{tcp.port}", NoMemory("nothing"), pod=MINE, token=TOKEN)
        assert (await client.read(["0"], deadline=Deadline.after(5))).held_by(6) == 6 * GB
        await client.close()


async def test_a_client_without_the_token_is_told_why_not(node: Node, tcp: NodeAgentOptions) -> None:
    async with node.agent(tcp):
        client = NodeAgent(f"http://127.0.0.1:{tcp.port}", NoMemory("nothing"), pod=MINE)
        found = await client.read(["0"], deadline=Deadline.after(5))
        await client.close()
    assert "EMBERPOOL_NODE_TOKEN" in found.reason


# ---------------------------------------------------------------------- health and metrics


async def test_a_hanging_call_degrades_health_and_restarts_nothing(node: Node) -> None:
    options = replace(node.options, limits=Limits(hang_seconds=0.01))
    async with node.agent(options) as calling:
        with node.library.hanging("nvmlDeviceGetMemoryInfo", uuid=A):
            await calling.memory(maxAgeMilliseconds="0")
            body = await calling.until(lambda body: body["status"] == "Degraded")
            assert body["hanging"] == [A]
            assert (await calling.ask("/healthz"))[0] == 200
            assert "emberpool_node_hanging_calls 1.0" in await calling.page()


async def test_an_outdated_library_fails_health_so_that_the_process_is_started_anew(caller: Caller) -> None:
    caller.node.library.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    await caller.memory(maxAgeMilliseconds="0")
    status, body = await caller.ask("/healthz")
    assert (status, body["status"], body["nvml"]) == (503, "Failed", "Outdated")
    assert "NVML error 18" in body["reason"]


async def test_the_metrics_page_has_everything_that_is_declared_and_no_process(caller: Caller) -> None:
    await caller.memory()
    page = await caller.page()
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    created = {name for name in names if name.endswith("_created")}  # left out by a whole process
    assert names - created == {family.name for family in FAMILIES}
    assert f'emberpool_node_gpu_memory_bytes{{gpu="{A}",part="used"}} 9e+09' in page
    assert f'emberpool_node_gpu_processes{{gpu="{A}"}} 3.0' in page
    assert 'emberpool_node_memory_requests_total{outcome="Verified"}' in page
    assert "emberpool_node_pod_resources_answering 1.0" in page
    assert MINE not in page


async def test_what_is_unknown_is_absent_from_the_page(caller: Caller) -> None:
    caller.node.library.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_UNKNOWN, uuid=A)
    await caller.memory(maxAgeMilliseconds="0")
    assert f'emberpool_node_gpu_memory_bytes{{gpu="{A}"' not in await caller.page()


# ---------------------------------------------------------------------- the socket


async def test_the_socket_is_its_owners_alone(caller: Caller) -> None:
    mode = (caller.node.directory / "node.sock").stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)


def test_a_group_that_is_named_may_use_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "run" / "node.sock"
    with unix_listener(path, os.getgid()):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, os.getgid())
    assert not path.exists()


def test_a_socket_that_a_killed_one_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with unix_listener(path, None) as listener:
        assert listener.getsockname() == str(path)


def test_a_socket_on_which_another_one_listens_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with unix_listener(path, None):
        with pytest.raises(StartFailed, match="another node agent listens"), unix_listener(path, None):
            pass
        assert path.exists()


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    path.write_text("mine")
    with pytest.raises(StartFailed, match="is no socket"), unix_listener(path, None):
        pass
    assert path.read_text() == "mine"


def test_a_socket_that_somebody_else_has_made_meanwhile_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with unix_listener(path, None):
        path.unlink()
        path.write_text("mine")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "reason"), [("x" * 200, "107 bytes at most"), ("/proc/none/node.sock", "can't be listened on")]
)
def test_a_path_where_no_socket_can_be_is_said_so(tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(StartFailed, match=reason), unix_listener(tmp_path / path, None):
        pass


# ---------------------------------------------------------------------- its end


async def test_it_ends_where_there_is_no_gpu(tmp_path: Path) -> None:
    options = NodeAgentOptions(socket=tmp_path / "node.sock")
    tree = ProcTree(tmp_path / "proc")
    with pytest.raises(NoGpu, match="NVML lists no GPU"):
        await serve_until(options, DriverNvml(FakeLibrary()), ProcFiles(tree.root), asyncio.Event())
    assert not (tmp_path / "node.sock").exists()


async def test_sigterm_ends_it_and_takes_its_socket_away(node: Node) -> None:
    path = node.directory / "node.sock"
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(serve(node.options, DriverNvml(node.library)))
        while not path.exists():
            await asyncio.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await running
    assert not path.exists()


@pytest.mark.parametrize(("options", "code"), [([], 1), (["--allow-none"], 0)])
def test_the_command_says_that_there_is_no_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert main(["node-agent", "--socket", str(tmp_path / "node.sock"), *options]) == code
        assert "NVML error 12" in capsys.readouterr().err
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a GPU")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "0"], "EMBERPOOL_NODE_TOKEN is not set"),
        (["--socket-group", "no such group"], "there is no group 'no such group'"),
        (["--socket", "x" * 200], "107 bytes at most"),
        (["--controllers", "controller:9080"], "'controller:9080' is no address of a controller"),
        (["--controllers", "http://controller:9080"], "EMBERPOOL_AGENT_TOKEN is not set"),
        (["--xid-table", "policies/two-gpus.yaml"], "there are 0 documents of kind XidTable"),
    ],
)
def test_the_command_refuses_what_cannot_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.delenv("EMBERPOOL_NODE_TOKEN", raising=False)
    monkeypatch.delenv("EMBERPOOL_AGENT_TOKEN", raising=False)
    assert main(["node-agent", *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "hint: " in said


def test_the_command_says_what_is_wrong_with_a_table_of_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "xids.yaml"
    path.write_text(
        "apiVersion: emberpool.dev/v1alpha1\nkind: XidTable\nmetadata: {name: x}\nspec:\n"
        "  rules: [{xids: [13], verdict: Bad, note: no}]\n"
    )
    assert main(["node-agent", "--xid-table", str(path)]) == 2
    assert "Xid 13 comes from applications" in capsys.readouterr().err


async def test_the_child_of_a_local_process_ends_for_good_where_there_is_no_gpu(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "node-agent.log"
    async with local_node_agent(tmp_path) as address, asyncio.timeout(20):
        assert address == f"unix://{tmp_path}/node.sock"
        while "no GPU" not in (log.read_text() if log.exists() else ""):
            await asyncio.sleep(0.02)


async def test_a_local_process_in_a_deep_folder_has_a_shorter_one_for_the_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    async with local_node_agent(deep) as address:
        path = Path(address.removeprefix("unix://"))
        assert len(str(path)) <= 107
        assert path.parent.is_dir()
    assert not path.parent.exists()


async def test_a_node_agent_that_cannot_be_started_leaves_the_local_process_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    async with local_node_agent(tmp_path), asyncio.timeout(10):
        while "it can't be started" not in caplog.text:
            await asyncio.sleep(0.005)
