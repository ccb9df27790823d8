"""`python -m scaler.drill.bench.gpu OUT`: the GPU's tests and the GPU drill in one go, with the card and the versions.

For a machine with one GPU, a source tree and the dependencies; writes the drill's report and `machine.json` to OUT.
"""

import json
import subprocess
import sys
from pathlib import Path

from scaler.drill.bench.machine import machine


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
    subprocess.run([*tests, "tests/gpu"], check=False, timeout=240)
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
