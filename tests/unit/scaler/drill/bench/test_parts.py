"""How a promotion's time is put together from what its client saw and what was recorded of it."""

from collections.abc import Mapping

import pytest

from scaler.drill.bench.parts import (
    PARTS,
    REQUEST_TO_TOKEN,
    SAMPLE_TO_TOKEN,
    Asked,
    Demoted,
    Promotion,
    joined,
    summarized,
    table,
)
from scaler.drill.figures import PromotionFigures
from warmpool.states import Depth

STEPS = {
    "decision": 1.0,
    "claimed": 3.0,
    "resumed": 13.0,
    "canary": 33.0,
    "rotation": 34.0,
    "firstToken": 60.0,
}


def asked(
    number: int = 0,
    *,
    depth: Depth = Depth.KV_RELEASED,
    first: float | None = 100.065,
    right: bool = True,
    failure: str = "",
) -> Asked:
    return Asked(number=number, model="a", depth=depth, sent=100.0, first=first, right=right, failure=failure)


def recorded(
    policy: str = "a",
    *,
    sample: float = 100.002,
    outcome: str = "Promoted",
    steps: Mapping[str, float] | None = None,
) -> PromotionFigures:
    return PromotionFigures(
        claim="c",
        operation="Promote",
        policy=policy,
        fleet="f",
        seat="s",
        outcome=outcome,
        error="" if outcome == "Promoted" else "it hung",
        sample=sample,
        waiting=1,
        steps=dict(STEPS if steps is None else steps),
        basis="Waited",
        phases={"kv": 9.0, "canary": 20.0},
    )


def one(request: Asked, *records: PromotionFigures, demoted: tuple[Demoted, ...] = ()) -> Promotion:
    (found,) = joined([request], records, demoted)
    return found


def test_the_parts_add_up_to_the_clients_time_to_the_first_token() -> None:
    found = one(asked(), recorded())
    assert found.failure == ""
    lengths = [found.milliseconds[part] for part in PARTS]
    assert lengths == pytest.approx([2, 1, 2, 10, 20, 1, 26, 3], abs=1e-3)
    assert sum(lengths) == pytest.approx(found.milliseconds[REQUEST_TO_TOKEN])
    assert found.milliseconds[SAMPLE_TO_TOKEN] == STEPS["firstToken"]


@pytest.mark.parametrize(
    ("request_", "records", "failure"),
    [
        pytest.param(asked(failure="Timeout: late"), [recorded()], "Timeout: late", id="failed"),
        pytest.param(asked(right=False), [recorded()], "a wrong token", id="wrong-token"),
        pytest.param(asked(), [], "no record of its promotion", id="it-served-already"),
        pytest.param(asked(), [recorded("b")], "no record of its promotion", id="of-another-model"),
        pytest.param(
            asked(depth=Depth.PARKED),
            [recorded()],
            "it slept less deep than Parked: no phase unpark",
            id="it-was-unparked-before",
        ),
        pytest.param(
            asked(), [recorded(sample=98.0)], "no record of its promotion", id="of-an-earlier-request"
        ),
        pytest.param(
            asked(),
            [recorded(outcome="Failed", steps={})],
            "a promotion failed: it hung",
            id="only-the-second-try-worked",
        ),
        pytest.param(
            asked(),
            [recorded(steps={k: v for k, v in STEPS.items() if k != "firstToken"})],
            "its record lacks firstToken",
            id="no-first-token",
        ),
    ],
)
def test_what_went_wrong_is_said(request_: Asked, records: list[PromotionFigures], failure: str) -> None:
    assert one(request_, *records).failure == failure


def test_each_record_belongs_to_one_request() -> None:
    first, second = joined([asked(0), asked(1)], [recorded()], [])
    assert (first.failure, second.failure) == ("", "no record of its promotion")


@pytest.mark.parametrize(
    ("since", "until", "disturbed"),
    [
        (99.0, 99.9, False),
        (99.0, 100.01, True),
        (100.01, 100.02, True),
        (100.06, 101.0, True),
        (100.1, 101.0, False),
    ],
)
def test_a_demotion_at_the_same_time_is_noted(since: float, until: float, *, disturbed: bool) -> None:
    found = one(asked(), recorded(), demoted=(Demoted(since=since, until=until),))
    assert found.disturbed is disturbed


def test_a_summary_counts_only_promotions_whose_time_is_known() -> None:
    found = summarized(joined([asked(0), asked(1)], [recorded()], []))
    assert found[SAMPLE_TO_TOKEN].count == 1
    assert found["agent: kv"].p50 == 9.0
    assert [line.split("  ")[0] for line in table(found)][1:4] == list(PARTS[:3])


def test_a_summary_of_nothing_is_empty() -> None:
    assert summarized([]) == {}
