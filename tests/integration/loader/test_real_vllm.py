"""The load format inside the real vLLM that VLLM_BIN names: a process of its own each, and the same tokens as by vLLM's own loader."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.engine_subjects import VLLM_BIN, VLLM_ENVIRONMENT, make_checkpoint

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(
        model=sys.argv[1], load_format=sys.argv[2], max_model_len=256, max_num_seqs=2, enforce_eager=True,
        dtype="bfloat16", skip_tokenizer_init=True,
    )
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
    (answer,) = llm.generate([{"prompt_token_ids": [256, 72, 101, 108, 108, 111]}], sampling)
    print("TOKENS", json.dumps(list(answer.outputs[0].token_ids)))
"""


@pytest.fixture
def program() -> str:
    if not os.environ.get(VLLM_BIN):
        pytest.skip(f"{VLLM_BIN} names no vLLM; make test-vllm VLLM_BIN=/path/to/vllm tries a real one")
    return str(Path(os.environ[VLLM_BIN]).parent / "python")


def install_entry_point(directory: Path) -> None:
    """What installing the project into vLLM's environment leaves there, as far as vLLM looks."""
    about = directory / "emberpool-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: emberpool\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nemberpool = loader.vllm:register\n")


def tokens(program: str, directory: Path, load_format: str) -> list[int]:
    script = directory / "generate.py"
    script.write_text(SCRIPT)
    environment = os.environ | VLLM_ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{directory / 'installed'}"}
    run = subprocess.run(
        [program, str(script), str(directory / "model"), load_format],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("TOKENS ")]
    found: list[int] = json.loads(line.removeprefix("TOKENS "))
    return found


@pytest.mark.timeout(600)
def test_the_same_tokens_as_by_its_own_loader(program: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model")
    install_entry_point(tmp_path / "installed")
    assert tokens(program, tmp_path, "emberpool") == tokens(program, tmp_path, "auto")
