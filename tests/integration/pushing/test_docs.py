"""docs/pushing-signals.md says what is so."""

import asyncio
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from scaler.cli.signal_options import SIGNAL_TOKEN as VARIABLE
from scaler.signals import sample as format_
from scaler.signals.pushed import PushedLimits
from scaler.signals.pushed_redis import CHANNEL
from tests.integration.pushing.rig import SIGNAL_TOKEN, served

PAGE = (Path(__file__).parents[3] / "docs" / "pushing-signals.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


async def test_the_example_is_taken() -> None:
    (example,) = blocks("json")
    body = json.loads(example) | {"at": time.time()}
    async with served() as on:
        assert (await on.post(body))[0] == 204
        load = on.load()
        assert (load.backlog.value, load.backlog_age.value) == (40, 12.5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_command_pushes(tmp_path: Path) -> None:
    command = blocks("sh")[0]
    async with served() as on:
        environment = {**os.environ, "EMBERPOOL_SERVER": on.url, VARIABLE: SIGNAL_TOKEN}
        curl = await asyncio.create_subprocess_exec(
            *("bash", "-c", command), env=environment, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await curl.communicate()
        assert (curl.returncode, out) == (0, b"")
        assert on.load().backlog.value == 40


def test_every_field_and_number_is_described() -> None:
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    fields = {"instance", "kind", "sequence", "at", "intervalSeconds", "policies"}
    assert described == fields | set(format_.NUMBERS)


def test_limits_are_those_that_hold() -> None:
    limits = PushedLimits()
    assert f"{limits.max_gateways} gateways, {limits.max_queues} other instances" in TEXT
    assert f"of which {limits.max_queues_of_policy} may speak of one policy" in TEXT
    assert f"{format_.MAX_BYTES // 1024} KiB and {limits.samples_per_second:g} samples a second" in TEXT
    assert f"from {format_.INTERVAL_SECONDS:g} (the default) to {format_.LONGEST_INTERVAL_SECONDS:g}" in TEXT
    assert f"`{CHANNEL}`" in TEXT
    assert (limits.fresh_intervals, limits.expiry_intervals) == (1.5, 2.5)
    assert "one and a half intervals, then Stale, and gone after two and a half" in TEXT
