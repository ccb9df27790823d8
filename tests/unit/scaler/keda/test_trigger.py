import pytest

from scaler.keda.trigger import MOST_IGNORED, MOST_KEYS, BadTrigger, Subject, Value, read


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"fleet": "spares"}, (Subject.FLEET, "", "spares", Value.TOTAL, "emberpool-fleet-spares-total")),
        (
            {"fleet": "serving/spares", "value": "Spare"},
            (Subject.FLEET, "serving", "spares", Value.SPARE, "emberpool-fleet-spares-spare"),
        ),
        ({"policy": "chat"}, (Subject.POLICY, "", "chat", Value.SERVING, "emberpool-policy-chat-serving")),
        (
            {"policy": "chat.v2", "value": "QueueAgeSeconds"},
            (
                Subject.POLICY,
                "",
                "chat.v2",
                Value.QUEUE_AGE_SECONDS,
                "emberpool-policy-chat-v2-queue-age-seconds",
            ),
        ),
        (
            {"policy": "chat", "value": "PromotionsInFlight", "metricName": "way"},
            (Subject.POLICY, "", "chat", Value.PROMOTIONS_IN_FLIGHT, "way"),
        ),
        (
            {"fleetFromEnv": "spares", "metricName": "s0-seats"},
            (Subject.FLEET, "", "spares", Value.TOTAL, "s0-seats"),
        ),
    ],
)
def test_metadata_says_whose_number_is_asked_for(metadata: dict[str, str], expected: tuple[str, ...]) -> None:
    found = read(metadata)
    assert (found.subject, found.namespace, found.name, found.value, found.metric) == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "has no key at all"),
        (
            {"pool": "x", "scalerAddress": "a:1"},
            "needs `fleet: NAME` or `policy: NAME`, and has 'pool', 'scalerAddress'",
        ),
        ({"fleet": "a", **{f"k{n}": "" for n in range(64)}}, "has 65 keys, and 64 are read at most"),
        ({"fleet": "a", "policy": "b"}, "names a fleet and a policy"),
        ({"fleet": "a", "policyFromEnv": "b"}, "names a fleet and a policy"),
        ({"fleet": ""}, "fleet: '' is neither a name nor namespace/name"),
        ({"fleet": "/a"}, "neither a name"),
        ({"fleet": "a/"}, "neither a name"),
        ({"fleet": "a/b/c"}, "neither a name"),
        ({"fleet": "x" * 1000}, "neither a name"),
        (
            {"fleet": "a", "value": "QueueDepth"},
            "'QueueDepth' is no value of a fleet; take one of Total, Serving, Spare",
        ),
        ({"policy": "a", "value": "total"}, "'total' is no value of a policy"),
        (
            {"fleet": "a", "metricName": "a/b"},
            "metricName: 'a/b' can't be a metric's name; use up to 253 of A-Z",
        ),
        ({"fleet": "a", "metricName": "-a"}, "with a letter or digit at both ends"),
        ({"fleet": "a", "metricName": ""}, "metricName: '' is no name; leave the key out"),
    ],
)
def test_metadata_that_asks_for_nothing_is_refused_by_name(metadata: dict[str, str], message: str) -> None:
    with pytest.raises(BadTrigger) as caught:
        read(metadata)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 800


def test_keys_that_mean_nothing_are_tolerated_and_named() -> None:
    found = read({"fleet": "a", "scalerAddress": "b:1", "enableTLS": "true", "team": "x", "fleets": "y"})
    assert found.used == ("fleet",)
    assert found.ignored == ("fleets", "team")


def test_of_keys_that_mean_nothing_a_few_short_names_are_kept_and_the_others_counted() -> None:
    keys = {f"k{number:02}" + "x" * 500: "" for number in range(MOST_KEYS - 1)}
    found = read({"fleet": "a", **keys})
    assert len(found.ignored) == MOST_IGNORED
    assert found.ignored[0] == "k00" + "x" * 60
    assert found.ignored_more == MOST_KEYS - 1 - MOST_IGNORED
    (strange,) = read({"fleet": "a", "a\n\x00" + "\xe9" * 63: ""}).ignored
    assert strange.isascii()
    assert strange.isprintable()
    assert len(strange) == 63


def test_what_is_asked_for_is_the_same_whatever_keys_mean_nothing() -> None:
    assert {read({"fleet": "a", "team": "x"}), read({"fleet": "a", "x": "team"})} == {read({"fleet": "a"})}


@pytest.mark.parametrize(
    ("own", "asked", "taken"),
    [
        ("seats", "seats", True),
        ("seats", "s0-seats", True),
        ("seats", "s12-seats", True),
        ("seats", "", True),
        ("seats", "s-seats", False),
        ("seats", "seats2", False),
        ("s0-seats", "s0-seats", True),
        ("s0-seats", "s1-s0-seats", True),
        ("s0-seats", "seats", False),
    ],
)
def test_a_metric_is_known_by_its_own_name_and_by_what_the_hpa_calls_it(
    own: str, asked: str, *, taken: bool
) -> None:
    assert read({"fleet": "a", "metricName": own}).names(asked) is taken
