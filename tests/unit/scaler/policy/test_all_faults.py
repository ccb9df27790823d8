"""Every fault of every file in one run, in the order of the files; and nothing that only follows from another one."""

import pytest

from scaler.errors import PolicyError
from scaler.policy.compile import compile_contents
from scaler.policy.document import parse

HEAD = "apiVersion: emberpool.dev/v1alpha1\n"


def fleet(name: str, spec: str, *, namespace: str = "") -> str:
    more = f", namespace: {namespace}" if namespace else ""
    return f"{HEAD}kind: Fleet\nmetadata: {{name: {name}{more}}}\nspec: {spec}\n"


def policy(name: str, spec: str, on: str = "own") -> str:
    fleets = f"  fleets: [{{name: {on}, targetInFlight: 8}}]\n"
    return f"{HEAD}kind: ScalingPolicy\nmetadata: {{name: {name}}}\nspec:\n{fleets}{spec}"


OWN = fleet("own", "{maxSeats: 4}")


def told(files: dict[str, str]) -> list[str]:
    """Return the place of each fault, and what of the document it is about; of a whole file what is said of it."""
    with pytest.raises(PolicyError) as raised:
        compile_contents([parse(text, file) for file, text in files.items()])
    return [
        f"{each.file}:{each.line}:{each.column}: {each.path or each.message}" for each in raised.value.faults
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {
                "a.yaml": fleet(
                    "own",
                    "{maxSeats: 4, schedules: [{name: day, start: '0 25 * * *', end: '0 8 * * *', timeZone: Europe/Berln, minSeats: 9}]}",
                )
            },
            [
                "a.yaml:4:52: spec.schedules[0].start",
                "a.yaml:4:94: spec.schedules[0].timeZone",
                "a.yaml:4:118: spec.schedules[0].minSeats",
            ],
            id="a schedule's start, time zone and floor",
        ),
        pytest.param(
            {
                "a.yaml": fleet(
                    "own",
                    "{maxSeats: 4, schedules: [{name: day, start: x, end: '0 8 * * *', minSeats: 1}, {name: day, start: '0 9 * * *', end: '0 9 * * *', minSeats: 9}]}",
                )
            },
            [
                "a.yaml:4:52: spec.schedules[0].start",
                "a.yaml:4:94: spec.schedules[1].name",
                "a.yaml:4:124: spec.schedules[1].end",
                "a.yaml:4:147: spec.schedules[1].minSeats",
            ],
            id="schedules of one name, one with a fault",
        ),
        pytest.param(
            {"a.yaml": fleet("own", "{maxSeats: 4, spare: {min: 3, max: 2, foo: 1}, maxSeat: 5}")},
            ["a.yaml:4:34: spec.spare.min", "a.yaml:4:45: spec.spare.foo", "a.yaml:4:54: spec.maxSeat"],
            id="an unknown key beside a rule between others",
        ),
        pytest.param(
            {"a.yaml": fleet("own", "{maxSeats: 4, spare: {mod: Auto, min: 1, quantile: 95}}")},
            ["a.yaml:4:29: spec.spare.mod"],
            id="what an unknown key probably stands for isn't missed",
        ),
        pytest.param(
            {
                "a.yaml": policy(
                    "chat",
                    "  serving: {min: 6, max: 5}\n  burst: {windowSeconds: 6, stableWindowSeconds: 3, thresholdPercent: 10}\n  objectives: {ttft: {seconds: 1, milliseconds: 5}}\n  priorty: 3\n",
                ),
                "b.yaml": OWN,
            },
            [
                "a.yaml:6:18: spec.serving.min",
                "a.yaml:7:50: spec.burst.stableWindowSeconds",
                "a.yaml:7:71: spec.burst.thresholdPercent",
                "a.yaml:8:49: spec.objectives.ttft.milliseconds",
                "a.yaml:9:3: spec.priorty",
            ],
            id="value, missing, unknown, rule",
        ),
        pytest.param(
            {
                "a.yaml": policy(
                    "chat",
                    "  signals:\n    - {name: a, type: Pushd}\n    - {name: a, type: Prometheus, query: up, intervalSeconds: 5, timeoutSeconds: 9}\n    - {name: B, type: RedisList, server: {mode: Cluster, database: 3, addresses: [x]}}\n",
                ),
                "b.yaml": OWN,
            },
            [
                "a.yaml:7:23: spec.signals[0].type",
                "a.yaml:8:7: spec.signals[1].measures",
                "a.yaml:8:14: spec.signals[1].name",
                "a.yaml:8:82: spec.signals[1].timeoutSeconds",
                "a.yaml:9:7: spec.signals[2].key",
                "a.yaml:9:14: spec.signals[2].name",
                "a.yaml:9:68: spec.signals[2].server.database",
                "a.yaml:9:83: spec.signals[2].server.addresses[0]",
            ],
            id="signals",
        ),
        pytest.param(
            {
                "a.yaml": policy(
                    "chat",
                    "  serving: {min: one, max: 2}\n  schedules: [{name: day, start: '0 8 * * *', end: '0 9 * * *', minServing: 3}]\n  fallback: {replicas: 4, behavior: Static}\n",
                ),
                "b.yaml": OWN,
            },
            [
                "a.yaml:6:18: spec.serving.min",
                "a.yaml:7:77: spec.schedules[0].minServing",
                "a.yaml:8:24: spec.fallback.replicas",
            ],
            id="fallback and schedules above a good maximum beside a bad minimum",
        ),
        pytest.param(
            {
                "a.yaml": "- 1\n---\n"
                + fleet("own", "{maxSeats: x}")
                + "---\nhello\n---\n"
                + policy("chat", "  priority: high\n")
            },
            [
                "a.yaml:1:1: a document must be a mapping with apiVersion, kind, metadata and spec, is a list",
                "a.yaml:6:18: spec.maxSeats",
                "a.yaml:8:1: a document must be a mapping with apiVersion, kind, metadata and spec, is a single value",
                "a.yaml:15:13: spec.priority",
            ],
            id="a list, a scalar, and faults in what is beside them",
        ),
        pytest.param(
            {
                "a.yaml": fleet("own", "{maxSeats: x}")
                + "---\nkind: [\n---\n"
                + policy("chat", "  priority: high\n")
                + "---\na: 'b\n---\n"
                + fleet("two", "{maxSeats: y}")
            },
            [
                "a.yaml:4:18: spec.maxSeats",
                "a.yaml:7:1: is not valid YAML: expected the node content, but found '<document start>'",
                "a.yaml:13:13: spec.priority",
                "a.yaml:16:1: is not valid YAML: found unexpected document separator",
                "a.yaml:20:18: spec.maxSeats",
            ],
            id="bad YAML in one document",
        ),
        pytest.param(
            {
                "a.yaml": fleet(
                    "own",
                    "\n  maxSeats: 4\n  schedules:\n    - {name: day, start: */5 8 * * *, end: @daily, minSeats: 9, timeZone: Mars}",
                )
            },
            [
                "a.yaml:7:26: the alias */5 has no anchor &/5 before it",
                "a.yaml:7:44: is not valid YAML: found character '@' that cannot start any token",
                "a.yaml:7:62: spec.schedules[0].minSeats",
                "a.yaml:7:75: spec.schedules[0].timeZone",
            ],
            id="a text without its quotes",
        ),
        pytest.param(
            {"a.yaml": fleet("own", "{maxSeats: x}") + policy("chat", "  priority: high\n")},
            [
                "a.yaml:4:18: spec.maxSeats",
                "a.yaml:5:1: a second document begins inside the one of line 1: apiVersion appears twice",
                "a.yaml:10:13: spec.priority",
            ],
            id="no line of dashes",
        ),
        pytest.param(
            {"a.yaml": fleet("own", "{maxSeats: 4, maxSeats: 5, spare: {min: 9, max: 3}}")},
            ['a.yaml:4:21: the key "maxSeats" appears twice, first in line 4', "a.yaml:4:47: spec.spare.min"],
            id="a key twice",
        ),
        pytest.param(
            {
                "a.yaml": HEAD
                + "kind: Fleet\nmetadata: {name: own}\nspec: {<<: {maxSeats: 3}, spare: {min: x}}\n"
            },
            ["a.yaml:4:8: merge keys (<<) are no part of YAML 1.2", "a.yaml:4:40: spec.spare.min"],
            id="a merge key gives what seems to be missing",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("Fleet", "Flet").replace("4", "four"), "b.yaml": policy("chat", "")},
            ["a.yaml:2:7: kind", "a.yaml:4:18: spec.maxSeats"],
            id="a misspelt kind",
        ),
        pytest.param(
            {
                "a.yaml": OWN.replace("Fleet", "Deployment").replace("own", "Own"),
                "b.yaml": policy("chat", ""),
            },
            ["a.yaml:2:7: kind", "a.yaml:3:18: metadata.name"],
            id="an unknown kind",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("v1alpha1", "v2").replace("4", "four"), "b.yaml": policy("chat", "")},
            ["a.yaml:1:13: apiVersion", "a.yaml:4:18: spec.maxSeats"],
            id="another version",
        ),
        pytest.param(
            {
                "a.yaml": OWN.replace("emberpool.dev/v1alpha1", "apps/v1").replace("Fleet", "Deployment"),
                "b.yaml": policy("chat", ""),
            },
            ["a.yaml:1:13: apiVersion", "b.yaml:5:19: spec.fleets[0].name"],
            id="another project",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("emberpool.dev/v1alpha1", "apps/v1"), "b.yaml": policy("chat", "")},
            ["a.yaml:1:13: apiVersion"],
            id="a fleet of another project may be meant",
        ),
        pytest.param(
            {
                "a.yaml": OWN.replace("emberpool", "emberpol").replace("4", "four"),
                "b.yaml": policy("chat", ""),
            },
            ["a.yaml:1:13: apiVersion", "a.yaml:4:18: spec.maxSeats"],
            id="a misspelt version",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("own", "!tag own"), "b.yaml": policy("chat", "", on="other")},
            ["a.yaml:3:18: the tag !tag is not understood"],
            id="a fleet whose name can't be read may be any",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("own", "Ü"), "b.yaml": policy("chat", "", on="other")},
            ["a.yaml:3:18: metadata.name"],
            id="a fleet whose name is nothing like any may be any",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("4", "four"), "b.yaml": policy("chat", "", on="onw")},
            ["a.yaml:4:18: spec.maxSeats", "b.yaml:5:19: spec.fleets[0].name"],
            id="missing fleet beside a fault elsewhere",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("4", "four"), "b.yaml": policy("chat", "")},
            ["a.yaml:4:18: spec.maxSeats"],
            id="a fleet with a fault isn't missing",
        ),
        pytest.param(
            {
                "a.yaml": OWN.replace("own", "Own_"),
                "b.yaml": policy("chat", ""),
                "c.yaml": policy("code", "", on="other"),
            },
            ["a.yaml:3:18: metadata.name", "c.yaml:5:19: spec.fleets[0].name"],
            id="a fleet whose name is wrong isn't missing",
        ),
        pytest.param(
            {
                "a.yaml": OWN.replace("{name: own}", "{namespace: default}"),
                "b.yaml": policy("chat", "", on="other"),
            },
            ["a.yaml:3:1: metadata.name"],
            id="a fleet without a name may be any",
        ),
        pytest.param(
            {"a.yaml": "kind: [", "b.yaml": policy("chat", "  priority: x\n")},
            [
                "a.yaml:1:8: is not valid YAML: expected the node content, but found the end of the file",
                "b.yaml:6:13: spec.priority",
            ],
            id="a file that can't be read may hold it",
        ),
        pytest.param(
            {
                "a.yaml": OWN.replace("4", "four"),
                "b.yaml": policy("chat", "  engine: {port: 8001}\n")
                + "---\n"
                + policy("code", "  priority: x\n  engine: {port: 8001}\n"),
            },
            ["a.yaml:4:18: spec.maxSeats", "b.yaml:13:13: spec.priority", "b.yaml:14:18: spec.engine.port"],
            id="ports",
        ),
        pytest.param(
            {
                "a.yaml": fleet("own", "{maxSeats: x, target: {name: own}}")
                + "---\n"
                + fleet("two", "{maxSeats: 3, target: {name: own}}")
            },
            ["a.yaml:4:18: spec.maxSeats", "a.yaml:9:36: spec.target.name"],
            id="targets",
        ),
        pytest.param(
            {
                "a.yaml": policy("chat", "  models: [m, m, 3]\n  priority: x\n")
                + "---\n"
                + policy("code", "  models: [3, m]\n")
                + "---\n"
                + policy("chat", ""),
                "b.yaml": OWN,
            },
            [
                "a.yaml:6:15: spec.models[1]",
                "a.yaml:6:18: spec.models[2]",
                "a.yaml:7:13: spec.priority",
                "a.yaml:14:12: spec.models[0]",
                "a.yaml:14:15: spec.models[1]",
                "a.yaml:18:18: metadata.name",
            ],
            id="names and models",
        ),
        pytest.param(
            {
                "a.yaml": OWN,
                "b.yaml": policy("chat", "  serving: {min: 5}\n"),
                "c.yaml": policy("code", "  priority: x\n"),
            },
            ["a.yaml:4:18: spec.maxSeats", "c.yaml:6:13: spec.priority"],
            id="no room beside a fault",
        ),
        pytest.param(
            {"a.yaml": OWN, "b.yaml": policy("chat", "  serving: {min: 50, max: 4}\n")},
            ["b.yaml:6:18: spec.serving.min"],
            id="a floor above its own maximum counts as nothing",
        ),
        pytest.param(
            {
                "a.yaml": OWN,
                "b.yaml": policy("chat", "  serving: {min: 3}\n"),
                "c.yaml": HEAD
                + "kind: Controller\nmetadata: {name: c}\nspec: {gpuBudget: 2, breaker: {maxPercent: 101}}\n",
                "d.yaml": HEAD + "kind: Controller\nmetadata: {name: d}\nspec: {gpuBuget: 1}\n",
            },
            [
                "c.yaml:4:19: spec.gpuBudget",
                "c.yaml:4:44: spec.breaker.maxPercent",
                "d.yaml:2:7: kind",
                "d.yaml:4:8: spec.gpuBuget",
            ],
            id="budget",
        ),
        pytest.param(
            {
                "a.yaml": fleet("own", "{maxSeats: x}", namespace="prod"),
                "b.yaml": policy("chat", "  priority: x\n"),
            },
            ["a.yaml:4:18: spec.maxSeats", "b.yaml:5:19: spec.fleets[0].name", "b.yaml:6:13: spec.priority"],
            id="namespaces",
        ),
        pytest.param(
            {"b.yaml": OWN.replace("4", "four"), "a.yaml": policy("chat", "  priority: x\n"), "c.yaml": ""},
            [
                "b.yaml:4:18: spec.maxSeats",
                "a.yaml:6:13: spec.priority",
                "c.yaml:1:1: the file holds no document",
            ],
            id="order of files as given",
        ),
        pytest.param(
            {
                "a.yaml": HEAD
                + "kind: XidTable\nmetadata: {name: x}\nspec:\n  rules:\n    - {xids: [13, x, 79], verdict: Bad, note: a}\n    - {xids: [79], verdict: Worse, note: b, withinSeconds: 5}\n"
            },
            [
                "a.yaml:6:15: spec.rules[0].xids[0]",
                "a.yaml:6:19: spec.rules[0].xids[1]",
                "a.yaml:7:15: spec.rules[1].xids[0]",
                "a.yaml:7:29: spec.rules[1].verdict",
                "a.yaml:7:60: spec.rules[1].withinSeconds",
            ],
            id="xids",
        ),
        pytest.param(
            {
                "a.yaml": policy(
                    "chat",
                    "  signals:\n"
                    + "".join(f"    - {{name: s{n}, type: Pushed}}\n" for n in range(21))
                    + "  priority: x\n",
                ),
                "b.yaml": OWN,
            },
            ["a.yaml:6:3: spec.signals", "a.yaml:28:13: spec.priority"],
            id="too many entries",
        ),
        pytest.param(
            {"a.yaml": fleet("own", "{maxSeats: 010, spare: {min: 9, max: 8}, resizedBy: x}")},
            ["a.yaml:4:18: spec.maxSeats", "a.yaml:4:36: spec.spare.min", "a.yaml:4:59: spec.resizedBy"],
            id="ambiguous",
        ),
        pytest.param(
            {"a.yaml": fleet("own", "{maxSeat: 4, target: {nam: a}}")},
            ["a.yaml:4:8: spec.maxSeat", "a.yaml:4:29: spec.target.nam"],
            id="misspelt required keys aren't missed",
        ),
        pytest.param(
            {"a.yaml": OWN.replace("kind", "kid").replace("apiVersion", "apiversion")},
            ["a.yaml:1:1: apiversion", "a.yaml:2:1: kid"],
            id="misspelt keys of every document aren't missed",
        ),
        pytest.param(
            {"a.yaml": "a: \u2028\n\ufeffb: 1\n", "b.yaml": OWN.replace("4", "four")},
            [
                "a.yaml:1:4: holds the invisible character U+2028",
                "a.yaml:2:1: holds the invisible character U+FEFF",
                "b.yaml:4:18: spec.maxSeats",
            ],
            id="invisible",
        ),
    ],
)
def test_all_faults_are_told_in_the_order_of_the_files(files: dict[str, str], expected: list[str]) -> None:
    assert told(files) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (fleet("own", "{maxSeats: 4, target: {name: a, foo: 1}}"), "known here: apiVersion, kind, name"),
        (fleet("own", "{maxSeats: 4, target: {name: a, nam: 1}}"), "did you mean name?"),
        (fleet("own", "{maxSeats: 4, costPerGpuHour: {cents: 1, foo: 1}}"), "known here: cents, currency"),
        (
            fleet("own", "{maxSeats: 4, serving: {min: 1}}"),
            "it belongs elsewhere: spec.serving of a ScalingPolicy",
        ),
        (OWN + "---\n" + policy("p", "  maxSeats: 3\n"), "it belongs elsewhere: spec.maxSeats of a Fleet"),
        (
            OWN + "---\n" + policy("p", "  targetInFlight: 3\n"),
            "it belongs elsewhere: spec.fleets[].targetInFlight",
        ),
        (OWN + "---\n" + policy("p", "  min: 3\n"), "it belongs elsewhere: spec.serving.min"),
        (
            OWN
            + "---\n"
            + policy("p", "  signals: [{name: a, type: RedisList, key: x, authorization: {}}]\n"),
            "known here: name, key, server, intervalMilliseconds, timeoutMilliseconds, type",
        ),
        (
            fleet("own", "{maxSeats: 4, scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 60}]}}"),
            "here that is Seats",
        ),
    ],
)
def test_a_word_that_is_unknown_where_it_stands_comes_with_its_mend(text: str, hint: str) -> None:
    with pytest.raises(PolicyError) as raised:
        compile_contents([parse(text, "a.yaml")])
    assert [fault.hint for fault in raised.value.faults] == [hint]
