"""Whatever objects hold, a look at them ends with findings: it never raises."""

import copy
import string
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scaler.doctor.objects import Object
from scaler.doctor.picture import Controller, Part, Picture
from scaler.doctor.whole import check
from scaler.doctor.wishes import of_controller
from tests.unit.scaler.doctor import cluster as c

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(string.printable, max_size=8)
    | st.sampled_from(
        ["100%", "9" * 5000, "[", "{}", '{"spec":1}', "2027-01-15T08:00:00Z", "0001-01-01T00:00:00+23:59"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from paths(each, (*path, index))


def everything() -> dict[Part, list[Any]]:
    bodies = c.objects()
    bodies[Part.SCALED_OBJECTS] = [c.scaled_object()]
    bodies[Part.HPAS] = [c.hpa(), c.hpa("", "by-cpu")]
    return {
        **bodies,
        Part.NAMESPACES: [{"kind": "Namespace", "metadata": {"name": "serving", "labels": {"a": "b"}}}],
    }


PLACES = [(part, path) for part, items in everything().items() for path in paths(items) if path]
SEAT = c.seat(SchedulerPause=("RouteMissing", "404"))
SEAT_PLACES = [path for path in paths(SEAT) if path]


def put(found: Any, path: tuple[Any, ...], value: Any) -> None:
    for each in path[:-1]:
        found = found[each]
    found[path[-1]] = value


def take(found: Any, path: tuple[Any, ...]) -> None:
    for each in path[:-1]:
        found = found[each]
    del found[path[-1]]


def looked_at(bodies: dict[Part, list[Any]]) -> None:
    objects = {
        part: tuple(Object(each) for each in items if isinstance(each, dict))
        for part, items in bodies.items()
    }
    for wishes in (None, c.WISHES):
        found = c.picture()
        check(Picture(now=c.NOW, objects=objects, clock=found.clock, rights=found.rights, wishes=wishes))


@given(place=st.sampled_from(PLACES), value=ODD)
def test_a_value_of_another_kind(place: tuple[Part, tuple[Any, ...]], value: Any) -> None:
    part, path = place
    bodies = everything()
    put(bodies[part], path, value)
    looked_at(bodies)


@given(places=st.lists(st.sampled_from(PLACES), min_size=1, max_size=4))
def test_values_that_are_missing(places: list[tuple[Part, tuple[Any, ...]]]) -> None:
    bodies = everything()
    for part, path in places:
        try:
            take(bodies[part], path)
        except (KeyError, IndexError, TypeError):
            continue  # gone with one that was taken before
    looked_at(bodies)


@given(
    body=st.dictionaries(st.sampled_from(["kind", "metadata", "spec", "status"]), ODD),
    part=st.sampled_from(Part),
)
def test_an_object_of_nothing_known(body: dict[str, Any], part: Part) -> None:
    bodies = everything()
    bodies[part] = [*bodies.get(part, []), body]
    looked_at(bodies)


@given(path=st.sampled_from(SEAT_PLACES), value=ODD)
def test_a_seat_that_a_newer_controller_tells(path: tuple[Any, ...], value: Any) -> None:
    seat = copy.deepcopy(SEAT)
    put(seat, path, value)
    check(Picture(now=c.NOW, controller=Controller(seats=(seat,))))


@given(fleets=st.lists(st.dictionaries(st.sampled_from(["name", "policies", "maxSeats", "namespace"]), ODD)))
def test_fleets_that_a_newer_controller_tells(fleets: list[dict[str, Any]]) -> None:
    found = c.picture()
    wishes = of_controller(fleets, fleets)
    check(Picture(now=c.NOW, objects=found.objects, wishes=wishes))


@given(status=ODD)
def test_what_a_newer_controller_says_of_itself(status: Any) -> None:
    check(
        Picture(
            now=c.NOW,
            controller=Controller(status={"serving": {"lastAttempt": status, "conditions": status}}),
        )
    )
    check(
        Picture(
            now=c.NOW,
            controller=Controller(status={"serving": {"lastAttempt": {"faults": status, "outcome": "x"}}}),
        )
    )
