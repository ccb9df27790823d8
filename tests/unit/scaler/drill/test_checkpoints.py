"""Checkpoints that several drills want at once."""

import asyncio
from pathlib import Path

from scaler.drill.checkpoints import Maker, prepare
from scaler.drill.scenario import Model

WRITES_A_CHECKPOINT = ("sh", "-c", 'mkdir "$5" && touch "$5/config.json"', "sh")


async def test_two_that_make_the_same_one_at_once_both_have_it(tmp_path: Path) -> None:
    maker = Maker(command=WRITES_A_CHECKPOINT, cache=tmp_path / "cache", given={})
    model = Model(policy="chat", requestsPerMinute=60)
    both = await asyncio.gather(*(prepare([model], maker, lambda _: None) for _ in range(2)))
    assert both[0] == both[1] == {"chat": tmp_path / "cache" / "small-seed1"}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["small-seed1"]
