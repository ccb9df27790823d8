"""Listeners of one command that want the same port."""

import pytest

from scaler.errors import UserError
from scaler.runtime.sockets import Door, check_apart


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        pytest.param(("127.0.0.1", 9080), ("127.0.0.1", 9080), True, id="same"),
        pytest.param(("127.0.0.1", 9080), ("127.0.0.1", 9081), False, id="other-port"),
        pytest.param(("127.0.0.1", 0), ("127.0.0.1", 0), False, id="any-that-is-free"),
        pytest.param(("0.0.0.0", 9080), ("127.0.0.1", 9080), True, id="all-addresses"),
        pytest.param(("localhost", 9080), ("127.0.0.1", 9080), True, id="by-name"),
        pytest.param(("10.0.0.1", 9080), ("127.0.0.1", 9080), False, id="other-address"),
        pytest.param(("::", 9080), ("127.0.0.1", 9080), False, id="other-family"),
        pytest.param(("::", 9080), ("::1", 9080), True, id="all-addresses-v6"),
        pytest.param(("box", 9080), ("box", 9080), True, id="same-name"),
        pytest.param(("box", 9080), ("127.0.0.1", 9080), False, id="unknown-name"),
    ],
)
def test_one_port_of_one_address_is_listened_on_once(
    one: tuple[str, int],
    other: tuple[str, int],
    overlap: bool,  # noqa: FBT001 (a table)
) -> None:
    doors = [Door(*one, "--one"), Door("127.0.0.1", 1, "--third"), Door(*other, "--other")]
    assert doors[0].overlaps(doors[2]) == doors[2].overlaps(doors[0]) == overlap
    if not overlap:
        check_apart(doors)
        return
    with pytest.raises(UserError, match="--one and --other are both 9080"):
        check_apart(doors)
