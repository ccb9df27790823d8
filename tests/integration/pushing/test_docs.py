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
from scaler.runtime.signal_api import PATIENCE_SECONDS
from scaler.runtime.signal_options import SignalOptions
from scaler.signals import sample as format_
from scaler.signals.pushed import PushedLimits
from scaler.signals.pushers import Role, parse_tokens
from scaler.signals.sample import Kind
from scaler.signals.throttle import ThrottleLimits
from tests.integration.pushing.rig import SIGNAL_TOKEN, served

PAGE = (Path(__file__).parents[3] / "docs" / "pushing-signals.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_rates_are_those_that_hold() -> None:
    limits = ThrottleLimits()
    for rate, who in (
        (limits.source, "one source: one pusher at one address"),
        (limits.pusher, "one pusher: one token, or all of Redis"),
        (limits.all, "all together"),
    ):
        assert f"| from {who} | {rate.samples:g} | {rate.bytes / 2**20:g} MiB |" in PAGE
        assert rate.at_once == 0.25
    assert (PATIENCE_SECONDS, "A quarter of a second's worth may come at once." in TEXT) == (0.5, True)


def test_the_file_of_tokens_is_one() -> None:
    (example,) = blocks("text")
    pushers = parse_tokens(example, "tokens")
    assert {pusher.name for pusher in pushers.values()} == {"gateway:edge", "queue:jobs", "queue", "agent"}


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
    fields = {"instance", "run", "kind", "sequence", "at", "intervalSeconds", "policies"}
    assert described == fields | set(format_.NUMBERS) | set(Role)


def test_limits_are_those_that_hold() -> None:
    limits = PushedLimits()
    assert f"{limits.max_gateways} gateways, {limits.max_queues} other instances" in TEXT
    assert f"of which {limits.max_queues_of_policy} of one pusher may speak of one policy" in TEXT
    assert limits.share_of_pusher == 7 / 8
    assert "one pusher may have seven eighths of either" in TEXT
    assert f"{limits.samples_per_second:g} samples a second of one instance" in TEXT
    queue, gateway = (
        f"{format_.MOST_BYTES[kind] // 1024} KiB and {format_.MOST_POLICIES[kind]}"
        for kind in (Kind.QUEUE, Kind.GATEWAY)
    )
    assert f"{queue} policies (of a `Gateway` {gateway})" in TEXT
    assert f"from {format_.INTERVAL_SECONDS:g} (the default) to {format_.LONGEST_INTERVAL_SECONDS:g}" in TEXT
    assert f"`{SignalOptions().channel}`" in TEXT
    intervals = (limits.fresh_intervals, limits.expiry_intervals, limits.gateway_expiry_intervals)
    assert intervals == (1.5, 2.5, 2.0)
    assert (
        "one and a half intervals, then Stale, and gone after two and a half, or two where it is a `Gateway`"
        in TEXT
    )
