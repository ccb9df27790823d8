import pytest

from scaler.policy.quantity import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1.0),
        ("500m", 0.5),
        ("250u", 0.00025),
        ("7n", 7e-9),
        ("1k", 1000.0),
        ("1e3", 1000.0),
        ("129E6", 129e6),
        ("5e-1", 0.5),
        ("2Ki", 2048.0),
        ("64Gi", 64.0 * 2**30),
        ("0.1Ti", 0.1 * 2**40),
        ("32G", 32e9),
        ("1E", 1e18),
        ("1Ei", 2.0**60),
        ("1.", 1.0),
        (".5", 0.5),
        ("+1", 1.0),
        ("-1", -1.0),
        ("0", 0.0),
        (1, 1.0),
        (0.1, 0.1),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: object, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "x", "1x", "1.2.3", None, "--1", ".", "1K", "1e3k", "1 Gi", "much"])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert quantity(text) is None
