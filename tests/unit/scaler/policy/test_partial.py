"""Models of which a part is wrong: what can be read of them, and what is said of the rest."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated

import pytest
from pydantic import Field

from scaler.policy.base import HOLE, Broken, Name, PolicyModel, Unsound, as_far_as_sound, sound_entries
from scaler.policy.document import Document, parse
from scaler.policy.fields import check_fields
from scaler.policy.scaling_policy import ScalingPolicySpec
from scaler.policy.signals import Prometheus, SignalBase
from scaler.policy.source import validate


class Inner(PolicyModel):
    name: Name = "inner"
    low: int = 1
    high: int = 2


class Outer(PolicyModel):
    inner: Inner = Inner()
    items: Annotated[tuple[Inner, ...], Field(max_length=2)] = ()
    words: tuple[Name, ...] = ()
    number: int = 3

    def broken_rules(self) -> Iterator[Broken]:
        yield from as_far_as_sound(self._number(), self._items())

    def _number(self) -> Iterator[Broken]:
        if self.number > self.inner.high:
            yield Broken(path=("number",), message="is too high")

    def _items(self) -> Iterator[Broken]:
        for index, each in sound_entries(self.items):
            with suppress(Unsound):
                if each.low > each.high:
                    yield Broken(path=("items", index, "low"), message="is too high")


def document(text: str) -> Document:
    (found,) = parse(text, "f.yaml").documents
    return found


def checked(text: str) -> tuple[Outer, set[str]]:
    model, wrong = check_fields(Outer, document(text).root)
    return model, {".".join(map(str, each.path)) for each in wrong}


def test_what_is_right_can_be_read_beside_what_is_wrong() -> None:
    model, wrong = checked("inner: {low: x, high: 7}\nnumber: 4\n")
    assert wrong == {"inner.low"}
    assert (model.number, model.inner.high, model.inner.name) == (4, 7, "inner")
    with pytest.raises(Unsound):
        _ = model.inner.low


def test_what_is_no_field_is_no_attribute_of_a_partial_model_either() -> None:
    model, _ = checked("number: x\n")
    with pytest.raises(AttributeError):
        _ = model.nothing  # type: ignore[attr-defined]


def test_what_somebody_wrote_is_told_from_what_is_there_by_default() -> None:
    whole = validate(Outer, document("number: 1\n"))
    part, _ = checked("number: 3\ninner: {low: x}\nwords: 7\n")
    assert (whole.given("number"), whole.given("items")) == (True, False)
    assert (part.given("number"), part.given("items"), part.given("words")) == (True, False, False)
    assert (part.inner.given("low"), part.given("inner")) == (False, True)
    assert part.without(("inner",)).given("number")
    assert not part.without(("number",)).given("number")


def test_a_list_keeps_the_places_of_its_entries() -> None:
    model, wrong = checked("items: [3, {low: 5}]\nwords: [a, B, c]\n")
    assert wrong == {"items.0", "words.1"}
    assert [index for index, _ in sound_entries(model.items)] == [1]
    assert list(sound_entries(model.words)) == [(0, "a"), (2, "c")]
    assert [rule.path for rule in model.broken_rules()] == [("number",), ("items", 1, "low")]


@pytest.mark.parametrize(
    "use",
    [
        *(bool, len, hash, list, str, int, "{}".format, lambda hole: hole.name, lambda hole: hole[0]),
        *(lambda hole: hole == 1, lambda hole: hole < 1, lambda hole: hole < 1, lambda hole: 1 + hole),
        *(lambda hole: hole in {1, 2}, lambda hole: f"{hole}"),
    ],
)
def test_nothing_can_be_done_with_a_hole(use: Callable[[object], object]) -> None:
    with pytest.raises(Unsound):
        use(HOLE)


def test_too_many_entries_are_told_beside_what_is_wrong_with_each() -> None:
    _, wrong = checked("items: [{low: x}, {high: y}, {name: A}, {}]\n")
    assert wrong == {"items", "items.0.low", "items.1.high", "items.2.name"}


def test_a_default_is_taken_unless_an_unknown_key_may_stand_for_it() -> None:
    model, wrong = checked("inner: {hihg: 9, unheard: 1}\n")
    assert wrong == {"inner.hihg", "inner.unheard"}
    assert model.inner.low == 1
    with pytest.raises(Unsound):
        _ = model.inner.high


def test_a_mapping_that_lost_keys_lacks_none() -> None:
    model, wrong = checked("inner: {<<: {low: 1}, high: 3}\n")
    assert wrong == set()
    assert model.inner.high == 3
    with pytest.raises(Unsound):
        _ = model.inner.low


def test_an_entry_of_no_known_type_is_checked_as_far_as_all_types_agree() -> None:
    text = """\
fleets: [{name: a, targetInFlight: 1}]
signals:
  - {type: Promethues, name: A, query: '', intervalSeconds: 0, unheard: 1}
  - {name: good}
"""
    model, wrong = check_fields(ScalingPolicySpec, document(text).root)
    assert {each.path[-1] for each in wrong} == {"type", "name", "query", "intervalSeconds"}
    assert [path for path in (each.path for each in wrong) if path[1] == 1] == [("signals", 1, "type")]
    assert model.signals[1].name == "good"
    assert isinstance(model.signals[1], SignalBase)
    assert not isinstance(model.signals[0], Prometheus)


def test_a_model_without_a_part_leaves_the_whole_one_alone() -> None:
    whole = validate(Outer, document("number: 1\nitems: [{low: 1}, {low: 2}]\nwords: [a, b]\n"))
    less = whole.without(("items", 1, "low")).without(("words", 0)).without(("inner", "high"))
    assert [index for index, _ in sound_entries(less.words)] == [1]
    assert less.items[0].low == 1
    for read in (lambda: less.items[1].low, lambda: less.inner.high):
        with pytest.raises(Unsound):
            read()
    assert (whole.items[1].low, whole.words, whole.inner.high) == (2, ("a", "b"), 2)
    assert Outer().inner.high == 2, "a default belongs to all models"
    assert whole.without(()) is whole
    assert whole.without(("nothing", "here")) is whole
