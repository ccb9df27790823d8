"""The controller, the gateway and the agent start where torch is not installed."""

import subprocess
import sys

import pytest

_BLOCK = """
import sys
for name in ("torch", "safetensors", "numpy", "transformers"):
    sys.modules[name] = None
import {module}
"""


@pytest.mark.parametrize(
    "module",
    [
        "scaler.runtime.local",
        "scaler.gateway.proxy",
        "scaler.cli.app",
        "warmpool.agent.app",
        "scaler.drill.run",
    ],
)
def test_imports_without_torch(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK.format(module=module)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
