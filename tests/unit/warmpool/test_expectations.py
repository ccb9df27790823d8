"""Who may prove itself against what, and when residents agree."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.expectations import (
    Answer,
    Ownership,
    Recording,
    Statement,
    agreed,
    difference,
    objection,
)

SOUND = (Answer(prompt="p", tokens=(1, 2, 3)), Answer(prompt="q", tokens=(4,)))
WRONG = (Answer(prompt="p", tokens=(1, 2, 9)), Answer(prompt="q", tokens=(4,)))


def says(uid: str, answers: tuple[Answer, ...] = SOUND, ownership: Ownership | None = None) -> Statement:
    return Statement(uid=uid, ownership=ownership or Ownership(), answers=answers)


@pytest.mark.parametrize(
    ("recorded", "running", "words"),
    [
        (Ownership(engine_version="1"), Ownership(engine_version="1"), []),
        (
            Ownership(engine_version="1"),
            Ownership(engine_version="2"),
            ["engine version 2 where 1 was recorded"],
        ),
        (Ownership(engine_version="1"), Ownership(), []),
        (Ownership(), Ownership(engine_version="1"), []),
        (
            Ownership(weights_digest="a", dtype="bfloat16", tensor_parallel_size=2),
            Ownership(weights_digest="b", dtype="float16", tensor_parallel_size=4),
            [
                "weights digest b where a was recorded",
                "dtype float16 where bfloat16 was recorded",
                "tensor parallel size 4 where 2 was recorded",
            ],
        ),
    ],
)
def test_an_engine_differs_in_what_both_tell(
    recorded: Ownership, running: Ownership, words: list[str]
) -> None:
    assert list(recorded.differences(running)) == words


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        pytest.param((1, 2, 3), "", id="same"),
        pytest.param((9, 2, 3), "prompt 'p': token 0 is 9 where 1 was recorded", id="first"),
        pytest.param((1, 2), "token 2 is nothing where 3 was recorded (2 tokens came", id="too short"),
        pytest.param((), "token 0 is nothing", id="nothing"),
        pytest.param((1, 2, 3, 4), "token 3 is 4 where nothing was recorded", id="too long"),
    ],
)
def test_tokens_are_compared_one_by_one(tokens: tuple[int, ...], words: str) -> None:
    found = difference(SOUND[0], Answer(prompt="p", tokens=tokens))
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("then", "now", "tolerance", "alike"),
    [
        pytest.param((-0.1, -2.0), (-0.1, -2.05), 0.1, True, id="within"),
        pytest.param((-0.1, -2.0), (-0.1, -2.2), 0.1, False, id="beyond"),
        pytest.param((-0.1, -2.0), (-0.1, math.nan), 0.1, False, id="no number"),
        pytest.param((-0.1, -2.0), (-9.0, -9.0), None, True, id="nobody asked"),
        pytest.param((-0.1, -2.0), (), 0.1, True, id="the engine doesn't tell"),
        pytest.param((), (-0.1, -2.0), 0.1, True, id="not recorded"),
    ],
)
def test_log_probabilities_are_compared_where_both_are_known(
    then: tuple[float, ...],
    now: tuple[float, ...],
    tolerance: float | None,
    alike: bool,  # noqa: FBT001 (a row of the table)
) -> None:
    expected, answered = (Answer(prompt="p", tokens=(1, 2), logprobs=each) for each in (then, now))
    assert (difference(expected, answered, tolerance) == "") is alike


@pytest.mark.parametrize(
    ("witnesses", "words"),
    [
        pytest.param({"me"}, "its only witness is this resident itself", id="itself alone"),
        pytest.param(set(), "its only witness", id="nobody"),
        pytest.param({"other"}, "", id="another"),
        pytest.param({"me", "other"}, "", id="itself and another"),
    ],
)
def test_nobody_is_its_own_witness(witnesses: set[str], words: str) -> None:
    recording = Recording(ownership=Ownership(), answers=SOUND, witnesses=frozenset(witnesses))
    found = objection(recording, "me", Ownership())
    assert words in found
    assert bool(found) is bool(words)


def test_a_recording_of_another_engine_is_refused() -> None:
    recording = Recording(ownership=Ownership(dtype="float16"), answers=SOUND, witnesses=frozenset({"other"}))
    assert "another engine: dtype" in objection(recording, "me", Ownership(dtype="bfloat16"))


@pytest.mark.parametrize(
    ("statements", "witnesses"),
    [
        pytest.param([], None, id="nobody"),
        pytest.param([says("1")], None, id="one alone"),
        pytest.param([says("1"), says("1")], None, id="one, twice"),
        pytest.param([says("1"), says("2")], {"1", "2"}, id="two"),
        pytest.param([says("1"), says("2", WRONG)], None, id="two that differ"),
        pytest.param([says("1"), says("2", WRONG), says("3")], {"1", "3"}, id="two against one"),
        pytest.param([says("1"), says("2", WRONG), says("3"), says("4", WRONG)], None, id="two against two"),
        pytest.param([says("1"), says("2", SOUND[:1])], None, id="other prompts"),
        pytest.param([says("1"), says("2", ownership=Ownership(dtype="x"))], {"1", "2"}, id="one tells more"),
        pytest.param(
            [says("1", ownership=Ownership(dtype="y")), says("2", ownership=Ownership(dtype="x"))],
            None,
            id="other engines",
        ),
    ],
)
def test_what_two_answer_alike_is_recorded(statements: list[Statement], witnesses: set[str] | None) -> None:
    recording = agreed(statements)
    assert (None if recording is None else recording.witnesses) == witnesses
    if recording is not None:
        assert recording.answers == SOUND
        assert recording.ownership.dtype == max(each.ownership.dtype for each in statements)


answers = st.sampled_from([SOUND, WRONG, SOUND[:1]])
ownerships = st.builds(Ownership, dtype=st.sampled_from(["", "x", "y"]))
statements = st.lists(
    st.builds(Statement, uid=st.sampled_from("abcdef"), ownership=ownerships, answers=answers),
    max_size=6,
    unique_by=lambda each: each.uid,
)


@given(statements)
def test_a_recording_is_witnessed_by_all_that_it_names_and_serves_each_of_them(
    heard: list[Statement],
) -> None:
    recording = agreed(heard)
    assert recording == agreed(reversed(heard))
    if recording is None:
        return
    assert len(recording.witnesses) >= 2
    for each in heard:
        if each.uid in recording.witnesses:
            assert objection(recording, each.uid, each.ownership) == ""
            assert each.answers == recording.answers


@given(statements)
def test_one_more_that_agrees_changes_no_answer(heard: list[Statement]) -> None:
    recording = agreed(heard)
    if recording is not None:
        one_more = Statement(uid="z", ownership=recording.ownership, answers=recording.answers)
        assert agreed([*heard, one_more]) == replace(recording, witnesses=recording.witnesses | {"z"})
