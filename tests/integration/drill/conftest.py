import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scaler.drill import ArmName, DrillOptions

FAKE = Path(__file__).parents[2] / "fakes" / "drill_local.py"
DRILLS = Path(__file__).parents[3] / "policies" / "drills"
MAKER = "import pathlib, sys; p = pathlib.Path(sys.argv[-1]); p.mkdir(); (p / 'config.json').write_text('{}')"

SHORT = """
  stages:
    - {name: baseline, kind: Baseline, seconds: 1}
    - {name: burst, kind: Burst, seconds: 3, loads: [{policy: chat, percent: 300}]}
"""


def short_scenario(folder: Path, **changes: str) -> Path:
    """The smoke scenario made still shorter and faster, for the stand-in; `changes` replace top-level parts of its spec."""
    text = (DRILLS / "smoke.yaml").read_text()
    start, end = text.index("\n  stages:"), text.index("  thresholds:")
    text = text[:start] + changes.get("stages", SHORT) + text[end:]
    text = text.replace("requestsPerMinute: 150", "requestsPerMinute: 600").replace(
        "maxTokensPerSecond: 25", "maxTokensPerSecond: 100"
    )
    if "thresholds" in changes:
        text = text[: text.index("  thresholds:")] + changes["thresholds"]
    path = folder / "short.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def short(tmp_path: Path) -> Callable[..., Path]:
    """Write the short scenario."""
    return lambda **changes: short_scenario(tmp_path, **changes)


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., DrillOptions]:
    """Options of a drill against the stand-in, all of whose files are under `tmp_path`."""

    def make(behave: str = "Well", *, scenario: Path | None = None, **changes: Any) -> DrillOptions:
        fields: dict[str, Any] = {
            "scenario": scenario or short_scenario(tmp_path),
            "arms": (ArmName.WARM,),
            "local_command": (sys.executable, str(FAKE), "--behave", behave),
            "checkpoint_command": (sys.executable, "-c", MAKER),
            "checkpoint_cache": tmp_path / "checkpoints",
            "output": tmp_path / "report",
            "console": Console(width=150, file=io.StringIO()),
        }
        return DrillOptions(**{**fields, **changes})

    return make
