"""Two sets compared: what counts as a difference, and how it is said."""

import pytest

from scaler.errors import PolicyError
from scaler.policy.base import Envelope
from scaler.policy.diff import Change, check_each, diff
from scaler.policy.document import parse


def document(kind: str, name: str, spec: str) -> str:
    return f"apiVersion: emberpool.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def fleet(spec: str = "", name: str = "own") -> str:
    return document("Fleet", name, f"{{maxSeats: 4, {spec}}}")


def policy(spec: str = "", name: str = "chat", fleets: str = "{name: own, targetInFlight: 8}") -> str:
    return document("ScalingPolicy", name, f"{{fleets: [{fleets}], {spec}}}")


def xids(rules: str) -> str:
    return document("XidTable", "xids", f"{{rules: [{rules}]}}")


def read(text: str) -> list[Envelope]:
    return check_each([parse(text, "set.yaml")])


def changes(before: str, after: str) -> list[Change]:
    return diff(read(before), read(after))


def words(before: str, after: str) -> list[str]:
    return [change.sentence for change in changes(before, after)]


OWN_AND_SPARES = "{name: own, targetInFlight: 8}, {name: spares, targetInFlight: 8}"
SPARES_AND_OWN = "{name: spares, targetInFlight: 8}, {name: own, targetInFlight: 8}"
QUEUE = "{name: q, type: RedisList, key: jobs}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(policy(), policy("serving: {min: 1, queueDrainSeconds: 2}"), id="a-written-default"),
        pytest.param(policy(), policy("models: [chat]"), id="the-policy's-own-name-as-model"),
        pytest.param(
            policy("models: [a, b]"), policy("models: [b, a]"), id="model-names-in-another-order"
        ),
        pytest.param(
            policy("objectives: {ttft: {seconds: 2}}"),
            policy("objectives: {ttft: {milliseconds: 2000}}"),
            id="the-same-time-in-another-unit",
        ),
        pytest.param(policy(), policy("objectives: {ttft: {milliseconds: 1000}}"), id="the-default-time-written"),
        pytest.param(fleet(), fleet("target: {kind: Deployment, name: own}"), id="the-fleet's-own-name-as-target"),
        pytest.param(
            policy("signals: [{name: gateway, type: Pushed}, " + QUEUE + "]"),
            policy("signals: [" + QUEUE + ", {name: gateway, type: Pushed}]"),
            id="signals-in-another-order",
        ),
        pytest.param(
            fleet('schedules: [{name: day, start: "0 8 * * *", end: "0 20 * * *", minSeats: 2}]'),
            fleet('schedules: [{name: day, start: "0  8 * * *", end: " 0 20 * * *", minSeats: 2}]'),
            id="spaces-in-a-cron-expression",
        ),
        pytest.param(fleet() + "---\n" + policy(), policy() + "---\n" + fleet(), id="documents-in-another-order"),
        pytest.param(
            xids("{xids: [79, 95], verdict: Bad, note: n}"),
            xids("{xids: [95], verdict: Bad, note: n}, {xids: [79], verdict: Bad, note: n}"),
            id="codes-in-other-rules",
        ),
        pytest.param(
            fleet("scaleDown: {policies: [{type: Seats, value: 1, periodSeconds: 60}, {type: Percent, value: 9, periodSeconds: 60}]}"),
            fleet("scaleDown: {policies: [{type: Percent, value: 9, periodSeconds: 60}, {type: Seats, value: 1, periodSeconds: 60}]}"),
            id="limits-in-another-order",
        ),
    ],
)  # fmt: skip
def test_what_means_the_same_is_no_difference(before: str, after: str) -> None:
    assert words(before, after) == []
    assert words(after, before) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param(
            policy("serving: {max: 4}"),
            policy("serving: {max: 8}"),
            ["policy chat: serving.max 4 → 8 residents (more residents may serve at once)"],
            id="a-number-with-its-unit",
        ),
        pytest.param(
            policy("serving: {max: 4}"),
            policy(),
            ["policy chat: serving.max 4 residents → no limit but the fleets' seats (more residents may serve at once)"],
            id="a-limit-that-goes",
        ),
        pytest.param(
            fleet("spare: {replenish: {perMinute: 12}}"),
            fleet("spare: {replenish: {perMinute: 1}}"),
            ["fleet own: spare.replenish.perMinute 12 → 1 seat (spares grow slower: fewer seats may be started in a minute)"],
            id="one-in-singular",
        ),
        pytest.param(
            policy(),
            policy("burst: {thresholdPercent: 120}"),
            ["policy chat: burst.thresholdPercent 150 → 120 % (takes a smaller rise of demand to begin a burst: promotes sooner)"],
            id="against-the-default",
        ),
        pytest.param(
            policy(),
            policy("objectives: {ttft: {milliseconds: 500}}"),
            ["policy chat: objectives.ttft.seconds 1 → 0.5 s (a queue's age begins a burst sooner: promotes sooner)"],
            id="a-time-in-seconds",
        ),
        pytest.param(
            fleet(),
            fleet("mode: Observe"),
            ["fleet own: mode Enforce → Observe (decisions are still published and recorded, and nothing is written)"],
            id="a-choice",
        ),
        pytest.param(
            policy(),
            policy("preemptible: true"),
            ["policy chat: preemptible false → true (beyond serving.min it only borrows spare seats, until somebody wants them)"],
            id="a-switch",
        ),
        pytest.param(
            policy(fleets=OWN_AND_SPARES),
            policy(fleets=SPARES_AND_OWN),
            [
                (
                    "policy chat: order of fleets [own, spares] → [spares, own] (its stable load belongs on the first "
                    "fleet, and later ones are the bridge, in this order)"
                )
            ],
            id="fleets-in-another-order",
        ),
        pytest.param(
            policy(),
            policy(fleets=OWN_AND_SPARES),
            [
                (
                    "policy chat: fleets[spares] added: {name: spares, targetInFlight: 8} (it may serve there too; its "
                    "resident has to live on that fleet's seats)"
                )
            ],
            id="a-fleet-more",
        ),
        pytest.param(
            policy(fleets=OWN_AND_SPARES),
            policy(fleets="{name: spares, targetInFlight: 8}"),
            [
                (
                    "policy chat: fleets[own] removed, was {name: own, targetInFlight: 8} (it no longer serves there: its "
                    "residents on that fleet leave)"
                )
            ],
            id="a-fleet-fewer-is-no-change-of-order",
        ),
        pytest.param(
            policy(fleets=OWN_AND_SPARES),
            policy(fleets=SPARES_AND_OWN.replace("own, targetInFlight: 8", "own, targetInFlight: 16")),
            [
                (
                    "policy chat: fleets[own].targetInFlight 8 → 16 requests in flight (each resident there holds more "
                    "requests: fewer residents for the same load)"
                ),
                (
                    "policy chat: order of fleets [own, spares] → [spares, own] (its stable load belongs on the first "
                    "fleet, and later ones are the bridge, in this order)"
                ),
            ],
            id="an-entry-is-found-by-its-name",
        ),
        pytest.param(
            policy("models: [a, b]"),
            policy("models: [b, c]"),
            [
                "policy chat: models removed, was a (requests for this name are no longer known here)",
                "policy chat: models added: c (the gateway routes requests for this name to it)",
            ],
            id="model-names",
        ),
        pytest.param(
            policy("signals: [" + QUEUE + "]"),
            policy("signals: [{name: q, type: RedisList, key: jobs, intervalMilliseconds: 500}]"),
            ["policy chat: signals[q].intervalMilliseconds 1000 → 500 ms (load is read more often: a burst is seen sooner)"],
            id="a-field-of-one-form-of-signals",
        ),
        pytest.param(
            fleet(),
            fleet('frozen: {until: "2026-12-24T18:00:00Z", reason: driver}'),
            [
                (
                    'fleet own: frozen added: {until: "2026-12-24T18:00:00Z", reason: driver} (no seat is created or '
                    "deleted until then)"
                )
            ],
            id="a-part-that-comes",
        ),
        pytest.param(
            xids("{xids: [79, 95], verdict: Suspect, note: n}"),
            xids("{xids: [79, 95], verdict: Suspect, note: n}".replace("95], verdict: Suspect", "96], verdict: Bad")),
            [
                "Xid table xids: rules[Xid 79].verdict Suspect → Bad (a GPU with the error is excluded, and its seat replaced)",
                (
                    "Xid table xids: rules[Xid 96] added: {verdict: Bad, when: Always, occurrences: 1, "
                    "withinSeconds: 86400, note: n} (this code says something of its GPU from now on)"
                ),
                (
                    "Xid table xids: rules[Xid 95] removed, was {verdict: Suspect, when: Always, "
                    "occurrences: 1, withinSeconds: 86400, note: n} (this code falls under `unlisted`)"
                ),
            ],
            id="error-codes-one-by-one",
        ),
        pytest.param(
            fleet("scaleDown: {policies: [{type: Seats, value: 1, periodSeconds: 60}]}"),
            fleet("scaleDown: {policies: [{type: Seats, value: 2, periodSeconds: 60}]}"),
            [
                (
                    "fleet own: scaleDown.policies removed, was {type: Seats, value: 1, periodSeconds: 60} (one limit fewer "
                    "on how fast seats are deleted)"
                ),
                (
                    "fleet own: scaleDown.policies added: {type: Seats, value: 2, periodSeconds: 60} (one more limit on how "
                    "fast seats are deleted; selectPolicy says which limit holds)"
                ),
            ],
            id="entries-without-names",
        ),
    ],
)  # fmt: skip
def test_a_difference_in_words(before: str, after: str, said: list[str]) -> None:
    assert words(before, after) == said


def test_an_entry_of_another_form_is_another_entry() -> None:
    (change,) = changes(
        policy("signals: [{name: s, type: Pushed}]"), policy("signals: [{name: s, type: EngineMetrics}]")
    )
    assert change.path == "spec.signals[s]"
    assert change.meaning == "its load is read in another way"
    assert (change.before["type"], change.after["type"]) == ("Pushed", "EngineMetrics")


def test_objects_that_come_and_go() -> None:
    both, fewer = fleet() + "---\n" + policy(), fleet()
    assert words(fewer, both) == ["policy chat: added (serves chat on own)"]
    assert words(both, fewer) == [
        "policy chat: removed (requests for chat are no longer known; its residents stay as they are)"
    ]


def test_an_object_that_says_the_same_under_another_name_was_renamed() -> None:
    found = changes(policy("serving: {min: 2}"), policy("serving: {min: 2}", name="talk"))
    assert [(change.path, change.before, change.after) for change in found] == [
        ("metadata.name", "chat", "talk"),
        ("spec.models", "chat", None),
        ("spec.models", None, "talk"),
    ]
    assert found[0].sentence == (
        "policy talk: renamed from chat (labels, metrics and pod names carry the new name)"
    )


def test_a_renamed_fleet_that_names_no_workload_has_another_one() -> None:
    assert words(fleet(), fleet(name="other")) == [
        "fleet other: renamed from own (labels, metrics and pod names carry the new name)",
        "fleet other: target.name own → other (the pods of another workload are the seats)",
    ]


def test_a_renamed_fleet_that_names_its_workload_keeps_it() -> None:
    target = "target: {kind: Deployment, name: own}"
    assert [change.path for change in changes(fleet(target), fleet(target, name="other"))] == [
        "metadata.name"
    ]


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        pytest.param(
            QUEUE,
            "{name: q, key: jobs, server: {mode: Standalone, database: 0}, intervalMilliseconds: 1000,"
            " timeoutMilliseconds: 500, type: RedisList}",
            id="redis",
        ),
        pytest.param(
            "{name: p, type: Prometheus, query: up, measures: Requests}",
            "{name: p, type: Prometheus, query: up, measures: Requests, intervalSeconds: 15, timeoutSeconds: 5,"
            " tls: {skipVerify: false}}",
            id="prometheus",
        ),
    ],
)
def test_an_added_entry_is_told_without_what_it_does_not_give(signal: str, said: str) -> None:
    (added,) = words(
        policy("signals: [{name: g, type: Pushed}]"),
        policy(f"signals: [{{name: g, type: Pushed}}, {signal}]"),
    )
    assert said in added
    assert "null" not in added


def test_where_several_could_have_been_renamed_none_was() -> None:
    before = fleet(name="a") + "---\n" + fleet(name="b")
    after = fleet(name="c") + "---\n" + fleet(name="d")
    assert [(change.name, change.path) for change in changes(before, after)] == [
        ("c", ""),
        ("d", ""),
        ("a", ""),
        ("b", ""),
    ]


def test_limits_of_which_a_set_has_one_are_compared_whatever_they_are_called() -> None:
    before, after = (
        document("Controller", "a", "{gpuBudget: 8}"),
        document("Controller", "b", "{gpuBudget: 4}"),
    )
    assert words(before, after) == [
        "controller b: renamed from a (labels, metrics and pod names carry the new name)",
        "controller b: gpuBudget 8 → 4 GPUs (all fleets together may have fewer GPUs: spares go first, floors last)",
    ]


def test_before_and_after_are_plain_values_with_defaults_filled_in() -> None:
    (change,) = changes(policy("serving: {min: 0}"), policy())
    assert (change.kind, change.name, change.path, change.before, change.after) == (
        "ScalingPolicy",
        "chat",
        "spec.serving.min",
        0,
        1,
    )


def test_a_policy_is_compared_without_its_fleets() -> None:
    assert words(policy(), policy("priority: 5")) == [
        "policy chat: priority 0 → 5 (it goes before more of the others where seats are short)"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(policy() + "---\n" + policy(), "there is another ScalingPolicy chat", id="one-name-twice"),
        pytest.param(xids("") + "---\n" + xids(""), "there is another XidTable; a set has one at most", id="two-tables"),
        pytest.param(fleet("maxseats: 3"), "is not a known key", id="not-right-by-itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        read(text)
