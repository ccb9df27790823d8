"""One sentence says why there is no connection, however many addresses a name has."""

import errno

import pytest

from scaler.keda.unreached import unconnected

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 6000)")
NO_ROUTE = OSError(errno.EHOSTUNREACH, "Connect call failed ('::1', 6000, 0, 0)")
NOT_HERE = OSError(errno.EADDRNOTAVAIL, "Connect call failed ('::1', 6000, 0, 0)")


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        pytest.param(
            {"127.0.0.1": REFUSED},
            "the connection is refused, for nobody listens there (127.0.0.1)",
            id="one-that-refuses",
        ),
        pytest.param(
            {"::1": REFUSED, "127.0.0.1": REFUSED},
            "the connection is refused, for nobody listens there (::1, 127.0.0.1)",
            id="two-that-refuse",
        ),
        pytest.param(
            {"::1": NOT_HERE, "127.0.0.1": REFUSED},
            "the connection is refused, for nobody listens there (127.0.0.1)",
            id="one-that-refuses-and-one-that-there-isnt",
        ),
        pytest.param(
            {"::1": NOT_HERE, "10.0.0.1": NO_ROUTE},
            "no connection (::1: Cannot assign requested address; 10.0.0.1: No route to host)",
            id="two-that-fail-each-in-its-own-way",
        ),
        pytest.param({}, "no connection (the name has no address)", id="none"),
    ],
)
def test_a_name_with_several_addresses_has_one_reason(failures: dict[str, OSError], reason: str) -> None:
    assert unconnected(failures).reason == reason
