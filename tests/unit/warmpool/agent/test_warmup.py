"""Warm-up goes through the lengths and batches that it was told, and where compiled code is kept follows from the machine."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.warmpool.agent.rig import FakeEngine
from warmpool.agent.caches import VARIABLES, Machine, machine_of, read_machine, with_caches
from warmpool.agent.config import AgentConfig, Warmup
from warmpool.agent.warmup import Shape, Sizes, prompts, shapes, sizes_of, warm_up
from warmpool.engines.deadline import Deadline
from warmpool.errors import EngineLost, EngineRejected
from warmpool.timeline import WarmUp


def sizes(**raw: Any) -> Sizes:
    return sizes_of(Warmup.model_validate(raw), in_flight=None, longest=None)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param({}, [], id="nothing-told"),
        pytest.param({"batchSizes": [4]}, [], id="no-length-for-a-batch"),
        pytest.param({"promptTokens": [512, 8, 8]}, [Shape(8, 1), Shape(512, 1)], id="lengths-alone"),
        pytest.param(
            {"promptTokens": [8], "batchSizes": [1, 4, 2]},
            [Shape(8, 1), Shape(8, 2), Shape(8, 4)],
            id="one-length",
        ),
        pytest.param(
            {"promptTokens": [8, 64, 512], "batchSizes": [32, 2]},
            [Shape(8, 1), Shape(64, 1), Shape(512, 1), Shape(8, 2), Shape(8, 32), Shape(512, 32)],
            id="the-largest-batch-of-the-longest-last",
        ),
    ],
)
def test_every_length_and_every_batch_is_gone_through(raw: dict[str, Any], expected: list[Shape]) -> None:
    assert list(shapes(sizes(**raw))) == expected


@pytest.mark.parametrize(
    ("raw", "in_flight", "longest", "lengths", "batches"),
    [
        pytest.param({}, None, 4096, [], [], id="nobody-says-what-it-is-to-hold"),
        pytest.param({}, 1, 4096, [8, 32, 128, 512, 2048], [], id="one-request"),
        pytest.param({}, 12, 4096, [8, 32, 128, 512, 2048], [2, 4, 8, 12], id="what-the-policy-asks-for"),
        pytest.param({}, 8, 256, [8, 32, 128, 248], [2, 4, 8], id="what-the-engine-takes"),
        pytest.param({"maxTokens": 56}, 8, 64, [8], [2, 4, 8], id="room-for-the-answer"),
        pytest.param({}, 8, 8, [], [2, 4, 8], id="no-room-for-any"),
        pytest.param({}, 8, None, [8, 32, 128, 512, 2048], [2, 4, 8], id="an-engine-that-tells-nothing"),
        pytest.param({"promptTokens": [99]}, 8, 4096, [99], [2, 4, 8], id="lengths-are-told"),
        pytest.param({"batchSizes": [3]}, 8, 64, [8, 32, 56], [3], id="batches-are-told"),
        pytest.param({"promptTokens": [], "batchSizes": []}, 8, 4096, [], [], id="none-are-wanted"),
    ],
)
def test_what_is_left_out_follows_from_policy_and_engine(
    raw: dict[str, Any], in_flight: int | None, longest: int | None, lengths: list[int], batches: list[int]
) -> None:
    found = sizes_of(Warmup.model_validate(raw), in_flight=in_flight, longest=longest)
    assert (list(found.lengths), list(found.batches)) == (lengths, batches)


@pytest.mark.parametrize(
    ("raw", "last"),
    [
        pytest.param({}, Shape(2048, 32), id="derived"),
        pytest.param({"promptTokens": [8, 2048]}, Shape(2048, 32), id="lengths-told"),
        pytest.param({"promptTokens": [8, 2048], "batchSizes": [256]}, Shape(2048, 256), id="all-told"),
        pytest.param({"promptTokens": [8, 1 << 20]}, Shape(1 << 20, 1), id="one-at-least"),
    ],
)
def test_only_who_says_both_lengths_and_batches_has_the_whole_of_them_computed_at_once(
    raw: dict[str, Any], last: Shape
) -> None:
    found = sizes_of(Warmup.model_validate(raw), in_flight=256, longest=None)
    assert list(shapes(found))[-1] == last


@given(
    st.lists(st.tuples(st.integers(16, 40), st.integers(1, 300)), min_size=1, max_size=4),
)
def test_no_prompt_begins_as_another_so_that_each_is_computed(told: list[tuple[int, int]]) -> None:
    made = [each for number, shape in enumerate(told) for each in prompts(Shape(*shape), number)]
    assert [len(each) for each in made] == [tokens for tokens, requests in told for _ in range(requests)]
    assert len({tuple(each[:16]) for each in made}) == len(made)
    assert all(10 <= token < 190 for each in made for token in each)


@pytest.mark.looptime
async def test_lengths_are_sent_alone_and_batches_at_once() -> None:
    engine, took = FakeEngine(), list[float]()
    told = sizes(prompts=["one"], promptTokens=[8, 64], batchSizes=[3], maxTokens=2)
    done = await warm_up(engine, told, took.append, deadline=Deadline.after(10))
    assert engine.asked == [(3, 0), (8, 0), (64, 0), (8, 0), (8, 1), (8, 2), (64, 0), (64, 1), (64, 2)]
    assert took == pytest.approx([0.001] * 3)
    assert done == WarmUp(prompt_tokens=(8, 64), batch_sizes=(1, 3), max_tokens=2)


@pytest.mark.looptime
async def test_what_an_engine_refuses_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(fails={"complete": EngineRejected("POST /v1/completions: answered 400: too long")})
    told = sizes(promptTokens=[8, 64])
    done = await warm_up(engine, told, lambda _: None, deadline=Deadline.after(10))
    assert engine.asked == [(8, 0), (64, 0)]
    assert "leaves out 1 requests of 8 tokens: POST /v1/completions: answered 400: too long" in caplog.text
    assert done == WarmUp(prompt_tokens=(64,), batch_sizes=(1,), max_tokens=8, left_out=1)


@pytest.mark.looptime
@pytest.mark.parametrize("raw", [{"promptTokens": [8]}, {"promptTokens": [8], "batchSizes": [4]}])
async def test_an_engine_that_is_lost_is_not_warm(raw: dict[str, Any]) -> None:
    engine = FakeEngine(fails={"complete": EngineLost("connection reset")})
    with pytest.raises(EngineLost):
        await warm_up(engine, sizes(**raw), lambda _: None, deadline=Deadline.after(10))


# ------------------------------------------------------------------ caches

VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""


def card(model: str, uuid: str) -> str:
    return f"Model: \t\t {model}\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nVideo BIOS: \t ??.??.??.??.??\n"


CARDS = [card("NVIDIA H200", "GPU-1"), card("NVIDIA L4", "GPU-2")]


@pytest.mark.parametrize(
    ("cards", "gpus", "key"),
    [
        (CARDS, ["GPU-1"], "nvidia-h200-580.95.05"),
        (CARDS, ["GPU-2"], "nvidia-l4-580.95.05"),
        (CARDS, ["0"], "nvidia-h200-nvidia-l4-580.95.05"),
        (CARDS[:1] * 2, [], "nvidia-h200-580.95.05"),
    ],
)
def test_compiled_code_belongs_to_a_model_and_a_driver(cards: list[str], gpus: list[str], key: str) -> None:
    assert machine_of(VERSION, cards, gpus).key == key


def test_the_drivers_files_are_read_where_they_are(tmp_path: Path) -> None:
    assert read_machine([], tmp_path) == Machine()
    assert Machine().key.startswith("cpu-")
    (tmp_path / "version").write_text(VERSION)
    (tmp_path / "gpus/0000:18:00.0").mkdir(parents=True)
    (tmp_path / "gpus/0000:18:00.0/information").write_text(CARDS[0])
    assert read_machine(["GPU-1"], tmp_path) == Machine(("NVIDIA H200",), "580.95.05")


def agent(**others: Any) -> AgentConfig:
    proof = {"prompts": [{"prompt": "x", "tokens": [1]}]}
    resident = {"policy": "a", "model": "a", "command": ["e", "{port}", "{controlPort}"], "proof": proof}
    resident["environment"] = {"TRITON_CACHE_DIR": "/own"}
    raw = {"seat": "s", "fleet": "f", "uid": "u", "logDirectory": "/tmp/x", "residents": [resident]}
    return AgentConfig.model_validate(raw | others)


def test_engines_are_told_where_to_keep_what_they_compile_unless_they_are_told_already() -> None:
    machine = Machine(("NVIDIA H200",), "580.95.05")
    told = with_caches(agent(compileCache="/cache"), machine).residents[0].environment
    assert told["VLLM_CACHE_ROOT"] == "/cache/nvidia-h200-580.95.05/vllm"
    assert told["TRITON_CACHE_DIR"] == "/own"
    assert told.keys() == {*VARIABLES, "USER"}
    assert with_caches(agent(), machine) == agent()


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(
        ValueError, match="cache is relative; it takes a path that is the same in every container"
    ):
        agent(compileCache="cache")
