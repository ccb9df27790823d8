"""Numbers, times and sizes as people read them."""

import pytest

from scaler.cli.human import age, duration, listed, number, plural, size


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-3.0, "0s"),
        (0.4, "0s"),
        (12.9, "12s"),
        (119, "119s"),
        (120, "2m"),
        (184, "3m4s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 240, "3h4m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86400, "8d"),
        (400 * 86400, "400d"),
    ],
)
def test_ages_are_written_as_kubectl_does(seconds: float, expected: str) -> None:
    assert age(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0ms"),
        (0.0042, "4.2ms"),
        (0.05, "50ms"),
        (0.8213, "0.82s"),
        (13.12, "13.1s"),
        (184.0, "3m4s"),
    ],
)
def test_durations_have_the_digits_that_matter(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    assert (number(None), size(None), listed([])) == ("-", "-", "-")
    assert (number(0.0), number(2.34), number(30.0)) == ("0", "2.3", "30")


def test_sizes() -> None:
    assert (size(700 * 2**20), size(3 * 2**29)) == ("700 MiB", "1.5 GiB")


def test_plurals() -> None:
    assert [plural(n, "policy") for n in (1, 2)] == ["1 policy", "2 policies"]
    assert [plural(n, "fault") for n in (1, 0)] == ["1 fault", "0 faults"]
