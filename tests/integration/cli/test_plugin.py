"""`kubectl emberpool`: kubectl finds the program by its file's name, and the program takes kubectl's cluster."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.cli.app import main
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.test_cluster import node, pod

KUBECTL = shutil.which("kubectl")


@pytest.fixture
def there() -> Iterator[FakeCluster]:
    with cluster() as made:
        made.create("Pod", pod("spares-0", "Spare"))
        made.create("Node", node("gpu-a"))
        yield made


def test_by_its_name_it_asks_the_cluster(
    there: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube" / "config", there)
    monkeypatch.setenv("HOME", str(tmp_path))
    for program in ("kubectl-emberpool", "/usr/local/bin/kubectl-emberpool", "kubectl-emberpool.exe"):
        assert main(["seat", "get", "-o", "name"], program) == 0
        assert capsys.readouterr().out == "seat/spares-0\n"


def test_its_help_and_its_errors_call_it_as_people_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seat", "get", "--help"], "kubectl-emberpool") == 0
    assert "Usage: kubectl emberpool seat get" in capsys.readouterr().out
    assert main(["seat", "gte"], "kubectl-emberpool") == 2
    assert "hint: see kubectl emberpool seat --help" in capsys.readouterr().err


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_kubectl_runs_it(there: FakeCluster, tmp_path: Path) -> None:
    program = tmp_path / "kubectl-emberpool"
    lines = [f"#!{sys.executable}", "import sys", "from scaler.cli.app import main", "sys.exit(main())", ""]
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "emberpool", "seat", "get", "-n", "serving", "-o", "name"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "KUBECONFIG": written(tmp_path / "config", there, namespace="default"),
            "PYTHONPATH": str(Path.cwd()),
        },
    )
    assert (done.returncode, done.stdout) == (0, "seat/spares-0\n"), done.stderr
