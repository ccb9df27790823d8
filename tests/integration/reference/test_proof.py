"""The agent's proof on real engines: sound weights pass, and weights of which two tensors have changed places don't."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.unit.warmpool.reference.conftest import Drive
from warmpool.agent.config import Proof
from warmpool.agent.proof import Prover
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Completion, Prompt
from warmpool.engines.reference import ReferenceEngine
from warmpool.errors import EngineUnfit, ProofFailed
from warmpool.reference.checkpoints import BYTE_BOS
from warmpool.reference.expect import record
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.pacing import Pacer
from warmpool.reference.runner import build
from warmpool.reference.scheduler import Limits
from warmpool.reference.startup import Startup
from warmpool.wire import answer_to_json, ownership_to_json

TOLERANCE = 1e-3
"""Of float32 on a CPU, with sums in another order."""
SWAPS = {
    "up and gate": ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_proj.weight"),
    "down of two layers": ("model.layers.2.mlp.down_proj.weight", "model.layers.3.mlp.down_proj.weight"),
    "queries of two layers": (
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.3.self_attn.q_proj.weight",
    ),
    "embedding and head": ("model.embed_tokens.weight", "lm_head.weight"),
    "keys and values": ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"),
}


def soon() -> Deadline:
    return Deadline.after(30)


@pytest.fixture(scope="module")
def recorded(checkpoint: Path) -> Proof:
    """What a sound engine answers, computed apart from serving."""
    options = ModelOptions(checkpoint=checkpoint, device="cpu", max_num_seqs=1, max_model_len=2)
    made = record(options)
    assert all(answer.logprobs for answer in made.answers)
    return Proof.model_validate(
        {
            "prompts": [answer_to_json(answer) for answer in made.answers],
            "ownership": ownership_to_json(made.ownership),
            "tolerance": TOLERANCE,
        }
    )


def prover(proof: Proof) -> Prover:
    return Prover(proof, "seat-1", random.Random(3))


def exchanged(source: Path, target: Path, one: str, other: str) -> Path:
    """Copy a checkpoint with two of its tensors exchanged."""
    target.mkdir()
    shards = {path.name: load_file(path) for path in source.glob("*.safetensors")}
    whole = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    assert whole[one].shape == whole[other].shape
    whole[one], whole[other] = whole[other], whole[one]
    for file, shard in shards.items():
        save_file({name: whole[name] for name in shard}, target / file, metadata={"format": "pt"})
    for path in source.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.fixture
async def sound(served: Any) -> AsyncIterator[ReferenceEngine]:
    async with ReferenceEngine(served.control, model="tiny") as engine:
        yield engine


async def test_a_sound_engine_is_proven_by_tokens_and_log_probabilities(
    sound: ReferenceEngine, recorded: Proof
) -> None:
    await prover(recorded).prove(sound, prompts=len(recorded.prompts), deadline=soon())
    for _ in range(4):
        await prover(recorded).canary(sound, deadline=soon())


async def test_an_engine_that_was_parked_is_still_the_one_that_was_recorded(
    sound: ReferenceEngine, recorded: Proof, client: Any
) -> None:
    await client.order("/sleep?level=1&mode=wait")
    await client.order("/wake_up")
    await prover(recorded).prove(sound, prompts=len(recorded.prompts), deadline=soon())


async def test_the_engine_tells_the_recorded_log_probabilities(
    sound: ReferenceEngine, recorded: Proof
) -> None:
    for prompt in recorded.prompts:
        answered = await sound.complete(prompt.prompt, tokens=len(prompt.tokens), deadline=soon())
        assert answered == prompt.tokens
        assert answered.logprobs == pytest.approx(prompt.logprobs, abs=TOLERANCE)


async def test_an_engine_with_two_tensors_exchanged_is_caught_by_its_first_proof(
    tools: Any, checkpoint: Path, recorded: Proof, tmp_path: Path
) -> None:
    """A process of its own, because weights are loaded once."""
    swapped = exchanged(checkpoint, tmp_path / "swapped", *SWAPS["down of two layers"])
    served = tools.start(swapped, ["--max-num-seqs", "1", "--max-model-len", "128"])
    try:
        async with ReferenceEngine(served.control, model="tiny") as engine:
            with pytest.raises(ProofFailed):
                await prover(recorded).prove(engine, prompts=2, deadline=soon())
    finally:
        tools.stop(served)


async def test_an_engine_tells_that_it_runs_with_what_was_recorded(
    sound: ReferenceEngine, recorded: Proof
) -> None:
    running = (await sound.startup(deadline=soon())).ownership
    assert running == recorded.ownership.ownership()
    prover(recorded).require_owner(running)
    with pytest.raises(EngineUnfit, match="weights digest"):
        prover(recorded).require_owner(replace(running, weights_digest="another"))


class InProcess:
    """What a prover asks of an engine, answered by one in this process."""

    def __init__(self, directory: Path) -> None:
        options = ModelOptions(checkpoint=directory, device="cpu", max_num_seqs=1, max_model_len=128)
        self._runner = build(open_model(options), options, Startup())
        self.drive = Drive(self._runner, Limits(max_num_seqs=1), Pacer())

    async def complete(self, prompt: Prompt, *, tokens: int, deadline: Deadline) -> Completion:
        del deadline
        assert isinstance(prompt, str)
        asked = [BYTE_BOS, *self._runner.tokenizer.encode(prompt)]
        key = self.drive.submit(asked, tokens, logprobs=0)
        self.drive.until(lambda: self.drive.ended(key))
        outputs = [output for output in self.drive.log if output.key == key]
        told = [output.logprobs.chosen for output in outputs if output.logprobs is not None]
        return Completion(self.drive.tokens_of(key), told)


@pytest.mark.parametrize("name", [None, *SWAPS])
async def test_whichever_two_tensors_are_exchanged_the_proof_sees_it(
    checkpoint: Path, recorded: Proof, tmp_path: Path, name: str | None
) -> None:
    directory = checkpoint if name is None else exchanged(checkpoint, tmp_path / "model", *SWAPS[name])
    engine: Any = InProcess(directory)
    try:
        if name is None:
            await prover(recorded).prove(engine, prompts=2, deadline=soon())
        else:
            with pytest.raises(ProofFailed):
                await prover(recorded).prove(engine, prompts=2, deadline=soon())
    finally:
        engine.drive.engine.stop()
        assert engine.drive.engine.join(30)


async def test_weights_whose_first_tokens_are_right_are_caught_by_log_probabilities(
    checkpoint: Path, recorded: Proof, tmp_path: Path
) -> None:
    """Gate and up of the last layer: what they come to hardly changes, and the canary asks for one token alone."""
    swapped = exchanged(
        checkpoint,
        tmp_path / "model",
        "model.layers.3.mlp.gate_proj.weight",
        "model.layers.3.mlp.up_proj.weight",
    )
    engine: Any = InProcess(swapped)
    caught = missed = 0
    try:
        for expectation in recorded.prompts:
            alone = recorded.model_copy(update={"prompts": (expectation,)})
            try:
                await prover(alone.model_copy(update={"tolerance": None})).canary(engine, deadline=soon())
            except ProofFailed:
                continue
            missed += 1
            with pytest.raises(ProofFailed, match="log-probability of token 0"):
                await prover(alone).canary(engine, deadline=soon())
            caught += 1
    finally:
        engine.drive.engine.stop()
        assert engine.drive.engine.join(30)
    assert caught == missed >= len(recorded.prompts) // 2
