"""The table of meanings: a row for every field of the formats, and what a row says of a change."""

import math
import types
import typing
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from scaler.policy.compile import KINDS
from scaler.policy.meaning import KEYS, Meaning, meaning_of

MATCHED_BY = {
    "Fleet.spec.schedules[].name",
    "ScalingPolicy.spec.fleets[].name",
    "ScalingPolicy.spec.schedules[].name",
    "ScalingPolicy.spec.signals[].name",
    "XidTable.spec.rules[].xids[]",
}
"""What entries are told apart by: it can't change, only an entry can come or go."""
ONE_WAY_OF_WRITING = {"ScalingPolicy.spec.objectives.ttft.milliseconds"}
"""Compared as seconds."""
WHOLE_LISTS = {"ScalingPolicy.spec.engine.args[]", "ScalingPolicy.spec.signals[].server.addresses[]"}
"""Lists that mean something as a whole only."""
WITHOUT_NAMES = ("Fleet.spec.scaleUp.policies[].", "Fleet.spec.scaleDown.policies[].")
"""Entries without a name: a changed one is one that went and one that came."""


def keys_of(annotation: object, key: str) -> Iterator[str]:
    """Yield every place of a format at which a change can be found."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from keys_of(arguments[0], key)
    elif origin in {types.UnionType, typing.Union}:
        yield from keys_of_branches(arguments, key)
    elif origin is tuple:
        entry = f"{key}[]"
        yield entry
        yield from (found for found in keys_of(arguments[0], entry) if found != entry)
    elif is_model(annotation):
        for name, field in typing.cast("type[BaseModel]", annotation).model_fields.items():
            hint = typing.get_type_hints(annotation, include_extras=True)[name]
            yield from keys_of(hint, f"{key}.{field.alias}")
    elif origin is not typing.Literal or len(arguments) > 1 or key.endswith("[].type"):
        yield key  # a literal of one value can't change, but for the form of an entry, which has another literal


def keys_of_branches(branches: tuple[object, ...], key: str) -> Iterator[str]:
    if types.NoneType in branches and is_model(branches[0]):
        yield key  # it can come or go as a whole
    for branch in branches:
        if branch is not types.NoneType:
            yield from keys_of(branch, key)


def is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def expected() -> set[str]:
    found = {key for kind, model in KINDS.items() for key in keys_of(model, kind)}
    found -= {f"{kind}.{part}" for kind in KINDS for part in ("kind", "apiVersion")}
    found -= MATCHED_BY | ONE_WAY_OF_WRITING | WHOLE_LISTS | {"Fleet.spec.target"}
    found = {key for key in found if not key.startswith(WITHOUT_NAMES)}
    return found | {"ScalingPolicy.spec.fleets", *(key.removesuffix("[]") for key in WHOLE_LISTS)}


def test_every_field_of_the_formats_has_a_row() -> None:
    assert expected() - KEYS == set()


def test_no_row_is_about_a_field_that_is_gone() -> None:
    assert KEYS - expected() == set()


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_row_says_something_of_every_change(key: str) -> None:
    row = meaning_of(key)
    assert row.change or (row.more and row.less) or row.to


CAP = Meaning(more="higher", less="lower", unset_as=math.inf)


@pytest.mark.parametrize(
    ("row", "before", "after", "said"),
    [
        pytest.param(CAP, 4, 8, "higher", id="more"),
        pytest.param(CAP, 8, 4, "lower", id="less"),
        pytest.param(CAP, 4, None, "higher", id="no-limit-any-more"),
        pytest.param(CAP, None, 4, "lower", id="a-limit-from-now-on"),
        pytest.param(Meaning(more="m", less="l", change="c"), None, 4, "c", id="given-from-now-on"),
        pytest.param(Meaning(to={"On": "on"}, change="c"), "Off", "On", "on", id="to-a-value"),
        pytest.param(Meaning(to={"On": "on"}, change="c"), "On", "Off", "c", id="to-another"),
        pytest.param(Meaning(to={True: "yes", False: "no"}), False, True, "yes", id="a-switch"),
        pytest.param(Meaning(to={None: "gone"}, change="c"), {"a": 1}, None, "gone", id="removed"),
    ],
)
def test_what_a_change_means(row: Meaning, before: object, after: object, said: str) -> None:
    assert row.of(before, after) == said
