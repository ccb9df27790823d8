"""The config file: what is read, and how each mistake is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmpool.agent.config import load_config
from warmpool.engines.kinds import EngineKind
from warmpool.errors import StartFailed

Json = dict[str, Any]


def good() -> Json:
    return {
        "seat": "spares-0",
        "fleet": "spares",
        "uid": "u",
        "host": "127.0.0.1",
        "port": 0,
        "controllers": ["http://127.0.0.1:9080/"],
        "gpus": [],
        "logDirectory": "logs",
        "exclusive": True,
        "residents": [
            {
                "policy": "chat",
                "model": "chat",
                "command": ["engine", "--port", "{port}", "--control-port={controlPort}"],
                "environment": {"A": "b"},
                "type": "Reference",
                "proof": {"prompts": [{"prompt": "x", "tokens": [1, 2]}]},
                "warmup": {"prompts": ["y"]},
                "memoryMiB": 700,
            }
        ],
    }


def write(directory: Path, config: Json) -> Path:
    path = directory / "agent.json"
    path.write_text(json.dumps(config))
    return path


def test_a_good_file_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, good()))
    assert config.controllers == ("http://127.0.0.1:9080",)
    assert not config.shared
    resident = config.residents[0]
    assert (resident.type, resident.memory_mib) == (EngineKind.REFERENCE, 700)
    assert resident.proof.prompts[0].tokens == (1, 2)


def change(*path: str | int, to: object) -> Callable[[Json], None]:
    def apply(config: Json) -> None:
        place: Any = config
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("mistake", "complaint"),
    [
        pytest.param(change("residents", to=[]), "residents: ", id="no resident"),
        pytest.param(change("port", to=70_000), "port: ", id="port"),
        pytest.param(change("sat", to=1), "sat: Extra inputs", id="unknown key"),
        pytest.param(
            change("controllers", to=["127.0.0.1:9080"]), "controllers: ", id="controller without scheme"
        ),
        pytest.param(change("residents", 0, "type", to="TGI"), "residents[0].type: ", id="kind of engine"),
        pytest.param(
            change("residents", 0, "command", to=["engine", "{port}"]),
            "residents[0]: command: neither an argument nor a variable contains {controlPort}",
            id="no control port",
        ),
        pytest.param(
            change("residents", 0, "command", to=["engine", "{controlPort}"]),
            "contains {port}",
            id="no port for a guard of its own",
        ),
        pytest.param(change("logDirectory", to=None), "logDirectory: without a launcher", id="no logs"),
        pytest.param(change("nodeAgent", to="http://10.0.0.1:9"), "nodeAgent: 10.0.0.1 is another", id="far"),
        pytest.param(change("nodeAgent", to="node.sock"), "nodeAgent: ", id="no address"),
        pytest.param(
            change("stageDaemon", to="/run/stage.sock"),
            "stageDaemon: /run/stage.sock is no socket",
            id="no socket",
        ),
        pytest.param(change("memory", to={"hostMiB": -1}), "memory.hostMiB: ", id="host memory"),
        pytest.param(change("kvWhenPaused", to="Lose"), "kvWhenPaused: ", id="KV memory"),
        pytest.param(
            change("residents", 0, "proof", "prompts", 0, "tokens", to=[]),
            "residents[0].proof: prompts[0].tokens: at least one, or agree: true",
            id="no tokens",
        ),
        pytest.param(
            change("residents", 0, "proof", "agree", to=True),
            "residents[0].proof: prompts[0].tokens: residents agree on them",
            id="tokens that are to be agreed on",
        ),
        pytest.param(
            change("residents", 0, "proof", "prompts", 0, "logprobs", to=[-0.5]),
            "logprobs: 1 for 2 tokens",
            id="log-probabilities for some tokens",
        ),
        pytest.param(change("residents", 0, "command", to=[]), "residents[0].command: ", id="no command"),
        pytest.param(
            change("residents", 0, "proof", "prompts", to=[]), "residents[0].proof.prompts: ", id="no proof"
        ),
        pytest.param(
            change("residents", 0, "proof", "prompts", 0, "tokens", to=[1, -1]),
            "residents[0].proof.prompts[0].tokens[1]: ",
            id="negative token",
        ),
        pytest.param(
            change("residents", 0, "warmup", to={"prompts": [""]}),
            "residents[0].warmup.prompts[0]: ",
            id="empty prompt",
        ),
    ],
)
def test_a_mistake_is_named_by_its_key(
    tmp_path: Path, mistake: Callable[[Json], None], complaint: str
) -> None:
    config = good()
    mistake(config)
    with pytest.raises(StartFailed) as failed:
        load_config(write(tmp_path, config))
    assert f"{tmp_path}/agent.json: " in str(failed.value)
    assert complaint in str(failed.value)


@pytest.mark.parametrize(
    ("others", "command", "environment"),
    [
        pytest.param(
            {"type": "SGLang"}, ["engine", "{controlPort}"], {}, id="the agent has the port in front of it"
        ),
        pytest.param(
            {"type": "VLLM", "guard": "Port"},
            ["engine", "--port={controlPort}"],
            {},
            id="that is the default",
        ),
        pytest.param(
            {"type": "VLLM", "guard": "Middleware"},
            ["engine", "{port}"],
            {"EMBERPOOL_GUARD_CONTROL": "127.0.0.1:{controlPort}"},
            id="a variable tells it as well as an argument",
        ),
    ],
)
def test_an_engine_is_told_the_ports_that_it_listens_on_and_no_others(
    tmp_path: Path, others: Json, command: list[str], environment: Json
) -> None:
    config = good()
    config["residents"][0] |= {**others, "command": command, "environment": environment}
    assert load_config(write(tmp_path, config)).residents[0].command == tuple(command)


def test_with_a_launcher_logs_need_no_place(tmp_path: Path) -> None:
    config = good() | {"launcher": "/run/launcher"}
    del config["logDirectory"]
    assert load_config(write(tmp_path, config)).log_directory is None


@pytest.mark.parametrize(
    ("residents", "said", "kv"),
    [(1, None, "Keep"), (2, None, "Release"), (1, "Release", "Release"), (2, "Keep", "Keep")],
)
def test_who_shares_a_seat_gives_kv_memory_back_unless_told_otherwise(
    tmp_path: Path, residents: int, said: str | None, kv: str
) -> None:
    config = good() | ({} if said is None else {"kvWhenPaused": said})
    config["residents"] = [config["residents"][0] | {"policy": str(number)} for number in range(residents)]
    assert load_config(write(tmp_path, config)).kv == kv


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    config = good() | {"port": -1, "exclusive": "perhaps"}
    with pytest.raises(StartFailed) as failed:
        load_config(write(tmp_path, config))
    assert len(str(failed.value).splitlines()) == 2


def test_a_policy_has_one_resident(tmp_path: Path) -> None:
    config = good()
    config["residents"] *= 2
    with pytest.raises(StartFailed, match="more than one of policy chat"):
        load_config(write(tmp_path, config))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="No such file"):
        load_config(tmp_path / "nothing.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(StartFailed, match="not JSON"):
        load_config(tmp_path / "broken.json")
