"""A short form of the soak: `python -m scaler.gateway.bench.soak --minutes 10` is the long one."""

from scaler.gateway.bench.soak import Soak


async def test_nothing_is_lost_answered_twice_or_left() -> None:
    tally = await Soak(seconds=2.0, seed=1).run()
    assert tally.wrong == []
    assert tally.ends["whole"] > 10
    assert tally.ends["hung up"] + tally.ends["cut"] > 1
