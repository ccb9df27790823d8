"""What can't start says so, and leaves nothing: nothing of it is timed, so it runs beside other tests."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill.leftovers import left_over, marked
from tests.fakes import forked
from tests.fakes.engine_subjects import make_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert left_over(5) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    make_checkpoint(directory)
    return directory


def local(*arguments: str) -> subprocess.CompletedProcess[str]:
    ports = ("--controller-port", "0", "--gateway-port", "0")
    return forked.run("local", *ports, *arguments, environment=marked(), timeout=120)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "hint: " in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    assert_refused(local("--checkpoint", f"chat={tmp_path / 'nowhere'}"), "nowhere")


def test_a_truncated_shard(checkpoint: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    shard = min(broken.glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1000)
    assert_refused(local("--checkpoint", f"chat={broken}"), shard.name)


def test_a_missing_shard(checkpoint: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    shard = min(broken.glob("*.safetensors"))
    shard.unlink()
    assert_refused(local("--checkpoint", f"chat={broken}"), shard.name)


@pytest.mark.long
def test_an_unknown_architecture(checkpoint: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps({**config, "architectures": ["MambaForCausalLM"], "model_type": "mamba"})
    )
    (broken / "emberpool.proof.json").unlink(missing_ok=True)
    assert_refused(local("--checkpoint", f"chat={broken}"), "ambaForCausalLM")


@pytest.mark.parametrize("flag", ["--controller-port", "--gateway-port"])
def test_a_port_in_use(checkpoint: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(local("--checkpoint", f"chat={checkpoint}", flag, port), port, flag)


def test_too_little_memory_for_the_seats(checkpoint: Path) -> None:
    assert_refused(local("--checkpoint", f"chat={checkpoint}", "--seats", "900"), "GiB")


def test_a_wrong_scenario(tmp_path: Path) -> None:
    text = (ROOT / "policies/drills/smoke.yaml").read_text().replace("stages:", "stagez:")
    (tmp_path / "wrong.yaml").write_text(text)
    done = forked.run("drill", "run", str(tmp_path / "wrong.yaml"), environment=marked())
    assert_refused(done, "wrong.yaml:", "stagez")
