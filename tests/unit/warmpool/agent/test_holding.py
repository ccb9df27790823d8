"""What a measurement says of a change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.agent.holding import SLACK_BYTES, Holding, judge, slack
from warmpool.engines.capabilities import Change, Verdict

GIB = 2**30
RIGHT, OPEN, WRONG = Verdict.VERIFIED, Verdict.UNVERIFIED, Verdict.CONTRADICTED
RELEASE, PARK, UNPARK, PAUSE, RESUME = (
    *(Change.RELEASE, Change.PARK, Change.UNPARK, Change.PAUSE),
    Change.RESUME,
)


@pytest.mark.parametrize(
    ("change", "known", "verdict", "words"),
    [
        pytest.param(RELEASE, {"held": None, "reason": "hidden"}, OPEN, "hidden", id="nothing measured"),
        pytest.param(
            RELEASE,
            {"held": 11, "before": 31, "moved": 20},
            RIGHT,
            "31744 MiB held before, 11264 MiB after 20480 MiB of KV memory were released",
            id="the first release",
        ),
        pytest.param(
            RELEASE,
            {"held": 30, "before": 31, "moved": 20},
            WRONG,
            "answered that 20480 MiB of KV memory were released, and the memory that it holds went from 31744 MiB to 30720 MiB",
            id="a release that no memory follows",
        ),
        pytest.param(RELEASE, {"held": 11, "before": 31}, OPEN, "isn't known", id="it tells no size"),
        pytest.param(RELEASE, {"held": 11, "usual": 11}, RIGHT, "usual are 11264 MiB", id="as usual"),
        pytest.param(
            RELEASE, {"held": 12, "usual": 11}, WRONG, "1024 MiB more than the usual 11264 MiB", id="a leak"
        ),
        pytest.param(RELEASE, {"held": 9, "usual": 11}, RIGHT, "9216 MiB", id="less than usual"),
        pytest.param(PAUSE, {"held": 31}, OPEN, "from now on", id="the first pause that keeps all"),
        pytest.param(PAUSE, {"held": 33, "usual": 31}, WRONG, "memory leaks", id="it keeps more and more"),
        pytest.param(PARK, {"held": 1, "before": 11, "moved": 10}, RIGHT, "moved to host", id="parked"),
        pytest.param(
            PARK,
            {"held": 11, "before": 11, "moved": 10},
            WRONG,
            "weights were moved to host",
            id="not parked",
        ),
        pytest.param(PARK, {"held": 3, "usual": 1}, WRONG, "leaks", id="half parked"),
        pytest.param(UNPARK, {"held": 11, "before": 1, "moved": 10}, RIGHT, "moved back", id="unparked"),
        pytest.param(UNPARK, {"held": 1, "before": 1, "moved": 10}, WRONG, "moved back", id="not unparked"),
        pytest.param(
            UNPARK, {"held": 8, "usual": 11}, WRONG, "3072 MiB less than the usual", id="half unparked"
        ),
        pytest.param(RESUME, {"held": 31, "most": 32}, RIGHT, "31744 MiB held of 32768 MiB", id="computing"),
        pytest.param(RESUME, {"held": 12, "most": 32}, RIGHT, "12288 MiB", id="memory is mapped as needed"),
        pytest.param(RESUME, {"held": 40, "most": 32}, WRONG, "at most", id="computing takes too much"),
        pytest.param(RESUME, {"held": 40}, OPEN, "isn't known", id="nobody knows how much"),
    ],
)
def test_a_measurement_is_compared_with_what_should_be_there(
    change: Change, known: dict[str, object], verdict: Verdict, words: str
) -> None:
    sizes = {key: value * GIB if isinstance(value, int) else value for key, value in known.items()}
    found = judge(Holding(change=change, **sizes))  # type: ignore[arg-type]
    assert (found.verdict, words in found.line) == (verdict, True), found.line


@pytest.mark.parametrize(
    ("change", "usual", "verdict"),
    [
        pytest.param(RELEASE, None, WRONG, id="the first release is judged"),
        pytest.param(RELEASE, 1 * GIB, OPEN, id="later ones aren't"),
        pytest.param(PARK, None, OPEN, id="nor is parking"),
        pytest.param(PAUSE, None, OPEN, id="nor is pausing"),
    ],
)
def test_host_memory_says_little(change: Change, usual: int | None, verdict: Verdict) -> None:
    holding = Holding(change=change, held=10 * GIB, before=10 * GIB, usual=usual, moved=GIB, device=False)
    assert judge(holding).verdict is verdict


def test_a_small_pool_drowns_in_what_else_moves() -> None:
    holding = Holding(change=RELEASE, held=2 * GIB, before=2 * GIB, moved=63 * 2**20, device=False)
    assert judge(holding).verdict is OPEN


sizes = st.integers(0, 200 * GIB)


@given(usual=sizes, off=st.integers(-(2**40), 2**40), change=st.sampled_from([RELEASE, PAUSE, PARK, UNPARK]))
def test_nothing_within_the_slack_is_a_leak_and_everything_beyond_is(
    usual: int, off: int, change: Change
) -> None:
    verdict = judge(Holding(change=change, held=max(0, usual + off), usual=usual)).verdict
    if -slack(usual) <= off <= slack(usual):
        assert verdict is RIGHT
    elif off > 0:
        assert verdict is WRONG
    assert slack(usual) >= SLACK_BYTES
