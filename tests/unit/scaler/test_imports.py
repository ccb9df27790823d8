"""The controller, the gateway and the agent start where torch is not installed."""

import subprocess
import sys

_IMPORTS = """
import importlib, sys
for name in ("torch", "safetensors", "numpy", "transformers"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_imports_without_torch() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", _IMPORTS),
            *(
                "scaler.runtime.local",
                "scaler.gateway.proxy",
                "scaler.cli.app",
                "warmpool.agent.app",
                "scaler.drill.run",
            ),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
