"""`python -m scaler.drill.bench.gpu OUT`: the GPU's tests and the GPU drill in one go, with the card and the versions.

For a machine with one GPU, a source tree and the dependencies; writes the drill's report and `machine.json` to OUT.
"""

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch", "numpy", "safetensors", "aiohttp", "pydantic")
_QUERY = "name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max"


def machine() -> dict[str, object]:
    """Describe the card and the software."""
    smi = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    card = subprocess.run(smi, capture_output=True, text=True, check=False, timeout=60)
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "card": card.stdout.strip() or card.stderr.strip(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "versions": versions,
    }


def main(out: Path) -> int:
    """Run everything; the exit code is the drill's."""
    out.mkdir(parents=True, exist_ok=True)
    described = json.dumps(machine(), indent=1)
    (out / "machine.json").write_text(described, "utf-8")
    sys.stdout.write(described + "\n")
    sys.stdout.flush()
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
    ]
    subprocess.run([*tests, "tests/gpu", "tests/unit/loader/test_pinned.py"], check=False, timeout=240)
    drill = [
        sys.executable,
        "-m",
        "scaler",
        "drill",
        "run",
        "policies/drills/gpu.yaml",
        "--out",
        str(out / "drill"),
    ]
    return subprocess.run(drill, check=False, timeout=500).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
