"""Seats as their pods alone tell of them."""

from typing import Any

import pytest

from scaler.runtime.labelled_seats import SteadySeats, guard_ports, labelled_seat, without_port

LISTED = (
    '[{"policy": "chat", "port": 8001, "command": ["x"]}, {"policy": "code", "port": 8002, "container": "c"}]'
)


def pod(ip: str = "10.0.0.9", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "seat-0",
            "uid": "u0",
            "labels": {
                "emberpool.dev/fleet": "spares",
                "serving.emberpool.dev/chat": "true",
                "serving.emberpool.dev/code": "false",
            },
            "annotations": {"emberpool.dev/residents": LISTED},
            **metadata,
        },
        "status": {"phase": phase, "podIP": ip},
    }


def test_a_label_puts_the_resident_at_the_port_that_the_template_names() -> None:
    seat = labelled_seat(pod())
    assert [(each.policy, each.address) for each in seat.residents] == [("chat", "http://10.0.0.9:8001")]
    assert (seat.name, seat.uid, seat.fleet, seat.usable) == ("seat-0", "u0", "spares", True)
    assert without_port(seat) == frozenset()


def test_an_address_of_version_6_is_written_as_in_urls() -> None:
    assert labelled_seat(pod("fd00::9")).residents[0].address == "http://[fd00::9]:8001"


def test_a_claim_that_can_t_be_read_takes_nobody_out_of_rotation() -> None:
    annotations = {"emberpool.dev/residents": LISTED, "emberpool.dev/claim": "no claim"}
    assert labelled_seat(pod(annotations=annotations)).usable


@pytest.mark.parametrize(
    "body",
    [pod(phase="Failed"), pod(phase="Succeeded"), pod(deletionTimestamp="2026-01-01T00:00:00Z")],
)
def test_a_pod_that_ends_is_not_usable(body: dict[str, Any]) -> None:
    assert not labelled_seat(body).usable


def test_a_pod_without_an_address_has_nobody_to_send_to() -> None:
    seat = labelled_seat(pod(""))
    assert seat.residents == ()
    assert without_port(seat) == {"chat"}


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (LISTED, {"chat": 8001, "code": 8002}),
        ('[{"policy": "chat", "port": 8001, "newer": {}}]', {"chat": 8001}),
        ('[{"policy": "chat", "port": true}, {"policy": "code", "port": 8002}]', {"code": 8002}),
        ('[{"policy": "chat", "port": 65536}, {"policy": 7, "port": 1}, "chat", {}]', {}),
        ("", {}),
        ("{}", {}),
        ("[" * 100_000, {}),
    ],
)
def test_ports_are_read_as_far_as_they_can_be(written: str, found: dict[str, int]) -> None:
    assert guard_ports(written) == found


def test_a_seat_stays_the_same_object_until_something_changes_that_routes_depend_on() -> None:
    seats = SteadySeats()
    first = seats.read(pod())
    other = pod(
        annotations={"emberpool.dev/residents": LISTED, "emberpool.dev/claim": "{}"}, resourceVersion="9"
    )
    assert seats.read(other) is first
    moved = seats.read(pod("10.0.0.10"))
    assert moved is not first
    seats.keep([])
    assert seats.read(pod("10.0.0.10")) is not moved
