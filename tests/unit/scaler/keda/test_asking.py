"""What a message asks for is read once, remembered within bounds, and the same as if it were read anew each time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.keda.asking import (
    LONGEST_MESSAGE,
    LONGEST_REMEMBERED,
    MOST_MESSAGES,
    MOST_REMEMBERED,
    Asking,
    Reference,
    Requests,
)
from scaler.keda.book import Asker
from scaler.keda.trigger import MOST_KEYS, BadTrigger, Trigger, read

METADATA = {"fleet": "spares", "scalerAddress": "emberpool:6000"}


@dataclass
class Ref:
    namespace: str = "serving"
    name: str = "spares"
    scalerMetadata: Mapping[str, str] = field(default_factory=lambda: METADATA)  # noqa: N815 - the message's own word


def test_the_same_is_read_once_in_whatever_order_its_metadata_comes() -> None:
    asking = Asking()
    first = asking.read(Ref())
    assert asking.read(Ref(scalerMetadata=dict(reversed(METADATA.items())))) is first
    assert first.asker == Asker("serving", "spares")
    assert first.wanted() == read(METADATA)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Ref(namespace="team"), id="namespace"),
        pytest.param(Ref(name="others"), id="name"),
        pytest.param(Ref(scalerMetadata={**METADATA, "fleet": "others"}), id="a-value"),
        pytest.param(Ref(scalerMetadata={**METADATA, "value": "Spare"}), id="a-key-more"),
    ],
)
def test_what_differs_is_read_apart(other: Ref) -> None:
    asking = Asking()
    assert asking.read(other) is not asking.read(Ref())
    assert len(asking) == 2


def test_what_asks_for_nothing_is_refused_each_time() -> None:
    asking, ref = Asking(), Ref(scalerMetadata={"flet": "spares"})
    for _ in range(2):
        with pytest.raises(BadTrigger, match="needs `fleet: NAME`"):
            asking.read(ref).wanted()
    assert len(asking) == 1


def test_who_asked_longest_ago_is_forgotten() -> None:
    asking = Asking()
    kept = asking.read(Ref())
    forgotten = asking.read(Ref(name="forgotten"))
    for number in range(MOST_REMEMBERED):
        asking.read(Ref(name=f"so-{number}"))
        assert asking.read(Ref()) is kept
    assert len(asking) == MOST_REMEMBERED
    assert asking.read(Ref(name="forgotten")) is not forgotten


def test_what_is_long_is_not_remembered() -> None:
    asking = Asking()
    asking.read(Ref(scalerMetadata={**METADATA, "note": "x" * LONGEST_REMEMBERED}))
    assert len(asking) == 0


class Counted(Mapping[str, str]):
    """Metadata of which the number of keys can be asked, and nothing else."""

    def __len__(self) -> int:
        return MOST_KEYS + 1

    def __getitem__(self, key: str) -> str:
        raise AssertionError(f"{key} was looked at")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the keys were looked at")


def test_too_many_keys_are_refused_for_their_number_alone() -> None:
    asking = Asking()
    with pytest.raises(BadTrigger, match="has 65 keys, and 64 are read at most"):
        asking.read(Ref(scalerMetadata=Counted())).wanted()
    assert len(asking) == 0


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["fleet", "policy", "value", "metricName", "fleetFromEnv", "note"]),
            st.sampled_from(["spares", "chat", "Total", "Serving", "a/b", ""]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_remembered_is_what_reading_gives(asked: list[dict[str, str]]) -> None:
    asking = Asking()
    for metadata in (*asked, *asked):
        found = asking.read(Ref(scalerMetadata=metadata))
        assert (found.trigger, found.refusal) == anew(metadata)


def anew(metadata: dict[str, str]) -> tuple[Trigger | None, str]:
    try:
        return read(metadata), ""
    except BadTrigger as error:
        return None, str(error)


class Parsing:
    """Messages of which each is the name of a ScaledObject and of a metric, and those that were parsed."""

    def __init__(self) -> None:
        self.parsed: list[bytes] = []
        self.requests = Requests(self._parse, Asking())

    def _parse(self, raw: bytes) -> tuple[Reference, str]:
        self.parsed.append(raw)
        name, _, metric = raw.decode().partition(" ")
        return Ref(name=name), metric


def test_a_message_is_parsed_once() -> None:
    on = Parsing()
    first, other = on.requests.read(b"spares s0-total"), on.requests.read(b"spares total")
    assert on.requests.read(b"spares s0-total") is first
    assert (first.metric, other.metric) == ("s0-total", "total")
    assert first.asked is other.asked
    assert len(on.parsed) == 2


def test_messages_that_are_asked_again_stay_whatever_comes_between() -> None:
    on = Parsing()
    kept = on.requests.read(b"kept")
    for number in range(2 * MOST_MESSAGES):
        on.requests.read(f"so-{number}".encode())
        assert on.requests.read(b"kept") is kept
        assert len(on.requests) <= MOST_MESSAGES
    on.requests.read(b"so-0")
    assert on.parsed.count(b"kept") == 1
    assert on.parsed.count(b"so-0") == 2


def test_a_long_message_is_parsed_each_time() -> None:
    on, long = Parsing(), b"x" * (LONGEST_MESSAGE + 1)
    assert on.requests.read(long) == on.requests.read(long)
    assert (on.parsed, len(on.requests)) == ([long, long], 0)


def test_what_is_no_message_is_not_remembered() -> None:
    on = Parsing()
    for _ in range(2):
        with pytest.raises(UnicodeDecodeError):
            on.requests.read(b"\xff")
    assert (on.parsed, len(on.requests)) == ([b"\xff"] * 2, 0)
