"""Cron expressions: which field is wrong, what could stand there, and that none is passed which the library refuses."""

from datetime import UTC, datetime

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import PolicyError
from scaler.policy.compile import check
from scaler.policy.cron import cron_problem
from scaler.policy.document import parse_documents

WHEN = "0 8 * * 1-5 is eight o'clock from Monday to Friday"
FIVE = "must be five cron fields (minute, hour, day of month, month, day of week), is "


@pytest.mark.parametrize(
    "cron", ["0 8 * * 1-5", "0 0 29 2 *", "*/5 8 * * *", "0 8 L * *", "0 8 31 2 1", "0 8 * jan mon#2"]
)
def test_a_moment_that_comes_again_and_again_is_right(cron: str) -> None:
    assert cron_problem(cron) is None


@pytest.mark.parametrize(
    ("cron", "message", "hint"),
    [
        ("61 * * * *", 'has "61" for the minute', "the minute is 0 to 59; several are 1,3 or 1-5"),
        ("0 24 * * *", 'has "24" for the hour', "the hour is 0 to 23; several are 1,3 or 1-5"),
        (
            "0 8 * 13 *",
            'has "13" for the month',
            "the month is 1 to 12, or JAN to DEC; several are 1,3 or 1-5",
        ),
        ("*/0 * * * *", 'has "*/0" for the minute', "the minute is 0 to 59; every fifth is */5"),
        (
            "0 8-6 * * *",
            'has "8-6" for the hour',
            "the hour is 0 to 23; a range goes from the lower to the higher: 1-5",
        ),
        (
            "0 8 31 2 *",
            "never comes: there is no 31 February",
            "choose a day that the month has; L is the last one of any month",
        ),
        (
            "0 8 31 sep,4 *",
            "never comes: there is no 31 September or 31 April",
            "choose a day that the month has; L is the last one of any month",
        ),
        ("@daily", f'{FIVE}"@daily"', 'write "0 0 * * *"'),
        ("@reboot", f'{FIVE}"@reboot"', WHEN),
        ("0 0 8 * * 1", f'{FIVE}"0 0 8 * * 1"', 'there are no seconds here: write "0 8 * * 1"'),
        ("* * * *", f'{FIVE}"* * * *"', WHEN),
        ("", f'{FIVE}""', WHEN),
    ],
)
def test_what_is_wrong_is_said_with_what_could_stand_there(cron: str, message: str, hint: str) -> None:
    assert cron_problem(cron) == (message, hint)


FIELD = st.text(alphabet="0123456789*/,-#LWJANFEBMO", min_size=1, max_size=7)


@given(st.lists(FIELD, min_size=5, max_size=5).map(" ".join))
def test_what_is_passed_is_what_the_library_takes(cron: str) -> None:
    try:
        comes = next(CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC)), None) is not None
    except CronSimError:
        comes = False
    assert comes or cron_problem(cron) is not None


def test_a_wrong_moment_is_a_fault_at_its_place() -> None:
    (document,) = parse_documents(
        "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\nmetadata: {name: a}\n"
        'spec: {maxSeats: 1, schedules: [{name: day, start: "@daily", end: "0 8 31 2 *", minSeats: 1}]}\n',
        "f.yaml",
    )
    with pytest.raises(PolicyError) as raised:
        check(document)
    assert [(fault.path, fault.message) for fault in raised.value.faults] == [
        ("spec.schedules[0].start", f'{FIVE}"@daily"'),
        ("spec.schedules[0].end", "never comes: there is no 31 February"),
    ]
