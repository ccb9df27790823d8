"""A pod's annotations over a config that all pods of a fleet share."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from warmpool.agent.annotations import HEALTH, MEMORY, RESIDENTS, with_policy
from warmpool.agent.config import AgentConfig, load_config
from warmpool.errors import StartFailed
from warmpool.expectations import PROMPTS

PROOF = {"prompts": [{"prompt": "p", "tokens": [1]}], "ownership": {"dtype": "bfloat16"}}


def resident(policy: str) -> dict[str, Any]:
    return {"policy": policy, "model": policy, "command": ["e", "{port}", "{controlPort}"], "proof": PROOF}


CONFIG = {"fleet": "own", "logDirectory": "/tmp", "residents": [resident("chat"), resident("code")]}


def annotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **annotations: object) -> AgentConfig:
    """Load the config beside a file as the kubelet writes it, with annotations of others."""
    monkeypatch.setenv("EMBERPOOL_SEAT", "pod-7")
    monkeypatch.setenv("EMBERPOOL_POD_UID", "uid-7")
    named = {"residents": RESIDENTS, "memory": MEMORY}
    ours = [f"{named[name]}={json.dumps(json.dumps(value))}" for name, value in annotations.items()]
    (tmp_path / "annotations").write_text("\n".join(['other="a\\x01b"', *ours, 'last=""']))
    (tmp_path / "agent.json").write_text(json.dumps(CONFIG))
    return load_config(tmp_path / "agent.json", tmp_path / "annotations")


def test_a_pod_is_a_seat_by_its_name_and_its_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = annotated(tmp_path, monkeypatch)
    assert (config.seat, config.uid, config.fleet) == ("pod-7", "uid-7", "own")
    assert [each.policy for each in config.residents] == ["chat", "code"]


def test_memory_is_what_the_template_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"deviceMiB": 143_771, "hostMiB": 65_536, "kvWhenPaused": "Keep"}
    config = annotated(tmp_path, monkeypatch, memory=told)
    assert (config.memory.device_mib, config.memory.host_mib, config.kv) == (143_771, 65_536, "Keep")


@pytest.mark.parametrize("mode", ["Observe", "Enforce"])
def test_what_verdicts_on_gpus_do_is_what_the_template_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    (tmp_path / "annotations").write_text(f'{HEALTH}="{mode}"')
    other = "Observe" if mode == "Enforce" else "Enforce"
    (tmp_path / "agent.json").write_text(json.dumps({**CONFIG, "gpuHealth": other}))
    monkeypatch.setenv("EMBERPOOL_SEAT", "pod-7")
    monkeypatch.setenv("EMBERPOOL_POD_UID", "uid-7")
    assert load_config(tmp_path / "agent.json", tmp_path / "annotations").gpu_health == mode


def test_the_template_says_who_is_there_in_which_order_and_how_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = annotated(
        tmp_path,
        monkeypatch,
        residents=[
            {"policy": "code", "port": 1, "container": "engines", "pausedMiB": 16_000},
            {
                "policy": "chat",
                "port": 2,
                "command": ["x", "{port}", "{controlPort}"],
                "kvMiB": 9,
                "activationMiB": 3,
            },
        ],
    )
    code, chat = config.residents
    assert (code.policy, code.memory_mib, code.command[0]) == ("code", 16_000, "e")
    assert (chat.policy, chat.kv_mib, chat.activation_mib, chat.command[0]) == ("chat", 9, 3, "x")


def test_who_is_not_in_the_template_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = annotated(tmp_path, monkeypatch, residents=[{"policy": "code", "port": 1}])
    assert [each.policy for each in config.residents] == ["code"]


def test_what_the_policy_says_of_warm_up_goes_before_what_the_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmup = {"batchSizes": [4], "maxTokens": 2}
    told = {"policy": "chat", "targetInFlight": 16, "graphCapture": "WhilePaused", "warmup": warmup}
    (chat,) = annotated(tmp_path, monkeypatch, residents=[told]).residents
    assert (chat.target_in_flight, chat.graph_capture) == (16, "WhilePaused")
    assert (chat.warmup.prompt_tokens, chat.warmup.batch_sizes, chat.warmup.max_tokens) == (None, (4,), 2)


def test_what_the_policy_says_of_the_proof_is_laid_over_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"tolerancePercent": 5, "ownership": {"engineVersion": "0.32.0"}}
    (chat,) = annotated(tmp_path, monkeypatch, residents=[{"policy": "chat", "proof": told}]).residents
    assert chat.proof.tolerance == pytest.approx(math.log(1.05))
    assert (chat.proof.ownership.engine_version, chat.proof.ownership.dtype) == ("0.32.0", "bfloat16")
    assert chat.proof.prompts[0].tokens == (1,)


def test_residents_that_are_to_agree_need_no_record() -> None:
    assert with_policy(PROOF, {"source": "Agreement", "prompts": ["q"], "maxTokens": 4}) == {
        "prompts": [{"prompt": "q"}],
        "agree": True,
        "maxTokens": 4,
    }
    assert with_policy({}, {"source": "Agreement", "prompts": []})["prompts"] == [
        {"prompt": prompt} for prompt in PROMPTS
    ]


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        pytest.param(
            {"residents": [{"policy": "math"}]}, "one of math, and the config doesn't say how", id="unknown"
        ),
        pytest.param({"residents": {"policy": "chat"}}, "can't be laid over", id="no list"),
        pytest.param({"residents": [{"port": 1}]}, "can't be laid over", id="no policy"),
        pytest.param({"memory": 3}, "can't be laid over", id="no object"),
        pytest.param({"memory": {"deviceMiB": "much"}}, "memory.deviceMiB", id="no number"),
    ],
)
def test_what_cannot_be_laid_over_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotations: dict[str, Any], words: str
) -> None:
    with pytest.raises(StartFailed, match=words):
        annotated(tmp_path, monkeypatch, **annotations)


@pytest.mark.parametrize("text", [None, f"{MEMORY}=unquoted", f'{MEMORY}="{{"'])
def test_a_file_that_is_no_such_file_is_named(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "agent.json").write_text(json.dumps(CONFIG))
    if text is not None:
        (tmp_path / "annotations").write_text(text)
    with pytest.raises(StartFailed, match="annotations"):
        load_config(tmp_path / "agent.json", tmp_path / "annotations")
