"""From pydantic's findings to sentences with a place and a mend."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

import pytest
from pydantic import Field

from scaler.errors import PolicyError
from scaler.policy.base import UNIT, Broken, Envelope, Name, PolicyModel
from scaler.policy.document import MAX_FAULTS
from scaler.policy.fleet import Fleet
from scaler.policy.source import model_for, parse_documents, validate


class Taste(StrEnum):
    SWEET = "Sweet"
    SALTY = "Salty"


class Slice(PolicyModel):
    name: Name
    weight_grams: Annotated[int, Field(ge=1)]
    """Weight of the slice. More is said here."""


class CakeSpec(PolicyModel):
    slices: Annotated[tuple[Slice, ...], Field(min_length=1)]
    """All slices of the cake."""
    taste: Taste = Taste.SWEET
    baked: bool = True
    note: str = ""
    topping: Slice | None = None
    percent: Annotated[int, Field(ge=1, le=100, json_schema_extra={UNIT: "percent"})] | None = None
    share: float = 0.5

    def broken_rules(self) -> Iterator[Broken]:
        if self.percent == 13:
            yield Broken(path=("percent",), message="brings bad luck", hint="take 12")
        if self.percent == 13 and not self.baked:
            yield Broken(path=("slices", 0, "name"), message="is raw")


class Cake(Envelope):
    kind: Literal["Cake"]
    spec: CakeSpec


HEAD = "apiVersion: emberpool.dev/v1alpha1\nkind: Cake\nmetadata: {name: c}\n"
GOOD = "spec:\n  slices: [{name: a, weightGrams: 3}]\n"


def check(text: str) -> list[str]:
    (document,) = parse_documents(text, "f.yaml")
    with pytest.raises(PolicyError) as raised:
        validate(model_for({"Cake": Cake}, document), document)
    return [str(fault).replace("\n\nhint: ", " | ") for fault in raised.value.faults]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "  slices: [{name: a, weightGrams: three}]",
            'f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is "three" | weight of the slice',
            id="text-for-a-number",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: '3'}]",
            'f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is "3" | remove the quotes',
            id="quoted-number",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: 0}]",
            "f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is 0 | weight of the slice",
            id="below-the-bound",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: 3.0}]",
            "f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is 3.0 | write 3",
            id="fraction",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: true}]",
            "f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is true | weight of the slice",
            id="boolean-for-a-number",
        ),
        pytest.param(
            "  slices: [{name: a}]",
            "f.yaml:5:12: spec.slices[0].weightGrams: is missing: must be an integer ≥ 1 | weight of the slice",
            id="missing",
        ),
        pytest.param(
            "  slices: []",
            "f.yaml:5:3: spec.slices: must be a list with at least one entry, is an empty list | all slices of the cake",
            id="empty-list",
        ),
        pytest.param(
            "  slices:",
            "f.yaml:5:3: spec.slices: must be a list with at least one entry, is empty | all slices of the cake",
            id="forgotten-value",
        ),
        pytest.param(
            "  slices: {name: a}",
            "f.yaml:5:3: spec.slices: must be a list with at least one entry, is a mapping | begin each entry with a dash and a"
            " space",
            id="mapping-for-a-list",
        ),
        pytest.param(
            "  slices: [x]",
            'f.yaml:5:12: spec.slices[0]: must be a mapping, is "x" | write {name: "x"}; it has the keys name (required),'
            " weightGrams (required)",
            id="text-for-a-mapping",
        ),
        pytest.param(
            "  slices: [7]",
            "f.yaml:5:12: spec.slices[0]: must be a mapping, is 7 | write {weightGrams: 7}; it has the keys name"
            " (required), weightGrams (required)",
            id="number-for-a-mapping",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: }]",
            "f.yaml:5:22: spec.slices[0].weightGrams: must be an integer ≥ 1, is empty | weight of the slice",
            id="nothing-for-a-required-number",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: 2.5}]",
            "f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is 2.5 | write 2 or 3",
            id="between-two-integers",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: ４}]",
            'f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is "４" | write the digits of ASCII: 4',
            id="digits-of-another-script",
        ),
        pytest.param(
            "  slices: [{name: a, weightGrams: .inf}]",
            "f.yaml:5:35: spec.slices[0].weightGrams: must be an integer ≥ 1, is .inf (inf in YAML 1.2) | weight of the slice",
            id="no-number-is-near",
        ),
    ],
)
def test_a_wrong_value_is_said_with_what_it_should_be(line: str, expected: str) -> None:
    assert check(f"{HEAD}spec:\n{line}\n") == [expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "  taste: sweat",
            'f.yaml:6:10: spec.taste: must be one of Sweet, Salty, is "sweat" | did you mean Sweet?',
            id="misspelt-choice",
        ),
        pytest.param(
            "  taste: Umami",
            'f.yaml:6:10: spec.taste: must be one of Sweet, Salty, is "Umami"',
            id="other-choice",
        ),
        pytest.param(
            "  baked: yes",
            'f.yaml:6:10: spec.baked: must be true or false, is "yes" | YAML 1.2 knows only true and false',
            id="yes",
        ),
        pytest.param(
            "  share:",
            "f.yaml:6:3: spec.share: must be a number, is empty | write a value, or remove the line",
            id="forgotten-fraction",
        ),
        pytest.param(
            "  percent:",
            None,
            id="nothing-where-nothing-is-the-default",
        ),
        pytest.param(
            "  taste:",
            "f.yaml:6:3: spec.taste: must be one of Sweet, Salty, is empty | write a value, or remove the line: the"
            " default is Sweet",
            id="forgotten-choice",
        ),
        pytest.param("  baked: 1", "f.yaml:6:10: spec.baked: must be true or false, is 1", id="one-for-true"),
        pytest.param(
            "  note: 3",
            "f.yaml:6:9: spec.note: must be text, is 3 | put it into quotes",
            id="number-for-text",
        ),
        pytest.param(
            "  topping: {name: A_b, weightGrams: 1}",
            "f.yaml:6:19: spec.topping.name: must be a DNS label (lower-case letters, digits and -, begins and ends"
            ' with a letter or digit, at most 63 characters), is "A_b" | for example llama-8b',
            id="inside-an-optional-mapping",
        ),
        pytest.param(
            "  percent: 101",
            "f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is 101",
            id="above-the-range",
        ),
        pytest.param("  share: much", 'f.yaml:6:10: spec.share: must be a number, is "much"', id="no-number"),
        pytest.param("  share: .nan", None, id="nan-is-a-float"),
        pytest.param(
            "  tsate: Sweet",
            "f.yaml:6:3: spec.tsate: is not a known key | did you mean taste?",
            id="misspelt-key",
        ),
        pytest.param(
            "  weight_grams: 3",
            "f.yaml:6:3: spec.weight_grams: is not a known key | known here: slices, taste, baked, note, topping,"
            " percent, share",
            id="unknown-key",
        ),
    ],
)
def test_a_second_key_is_wrong(line: str, expected: str | None) -> None:
    text = f"{HEAD}{GOOD}{line}\n"
    if expected is None:
        (document,) = parse_documents(text, "f.yaml")
        validate(Cake, document)
    else:
        assert check(text) == [expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "percent: 1:30",
            'f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is "1:30" | YAML 1.2 reads 1:30 as text:'
            " write 90 if that is meant",
            id="sexagesimal",
        ),
        pytest.param(
            "percent: 1_0",
            'f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is "1_0" | YAML 1.2 reads 1_0 as text: write 10',
            id="underscores",
        ),
        pytest.param(
            "percent: 0b101",
            'f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is "0b101" | YAML 1.2 reads 0b101 as text:'
            " write 5",
            id="binary",
        ),
        pytest.param(
            "percent: 30 %",
            'f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is "30 %" | write the number alone; its unit'
            " is percent",
            id="with-its-unit",
        ),
        pytest.param(
            "percent: 1e1",
            "f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is 1e1 (10.0 in YAML 1.2) | write"
            " 10",
            id="exponent",
        ),
        pytest.param(
            "percent: on",
            'f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is "on"',
            id="on",
        ),
        pytest.param(
            "note: 010",
            "f.yaml:6:9: spec.note: must be text, is 010 (10 in YAML 1.2) | put it into quotes",
            id="old-octal-for-text",
        ),
        pytest.param(
            "note: 0o17",
            "f.yaml:6:9: spec.note: must be text, is 0o17 (15 in YAML 1.2) | put it into quotes",
            id="octal-for-text",
        ),
        pytest.param(
            "note: True",
            "f.yaml:6:9: spec.note: must be text, is true | put it into quotes",
            id="truth-for-text",
        ),
        pytest.param(
            "note: ~",
            "f.yaml:6:3: spec.note: must be text, is empty | write a value, or remove the line",
            id="null-for-text",
        ),
        pytest.param(
            "percent: 010",
            "f.yaml:6:12: spec.percent: must be a decimal number without leading zeros, is 010 (10 in YAML 1.2) | write"
            " 10, or 8 if the zero was to say octal, as in YAML 1.1",
            id="old-octal",
        ),
        pytest.param(
            "percent: 09",
            "f.yaml:6:12: spec.percent: must be a decimal number without leading zeros, is 09 (9 in YAML 1.2) | write 9",
            id="leading-zero-that-no-octal-has",
        ),
        pytest.param(
            "percent: 0x10",
            "f.yaml:6:12: spec.percent: must be a decimal number without leading zeros, is 0x10 (16 in YAML 1.2) |"
            " write 16",
            id="hexadecimal",
        ),
        pytest.param(
            "percent: 0o10",
            "f.yaml:6:12: spec.percent: must be a decimal number without leading zeros, is 0o10 (8 in YAML 1.2) |"
            " write 8",
            id="octal",
        ),
    ],
)
def test_what_yaml_1_1_read_otherwise_is_said(line: str, expected: str) -> None:
    assert check(f"{HEAD}{GOOD}  {line}\n") == [expected]


def test_a_number_that_is_read_in_two_ways_is_told_once_and_beside_other_faults() -> None:
    assert check(f"{HEAD}{GOOD}  percent: 0777\n  share: 010\n  baked: 3\n") == [
        "f.yaml:6:12: spec.percent: must be an integer from 1 to 100, is 0777 (777 in YAML 1.2)",
        (
            "f.yaml:7:10: spec.share: must be a decimal number without leading zeros, is 010 (10 in YAML 1.2) | write 10, or"
            " 8 if the zero was to say octal, as in YAML 1.1"
        ),
        "f.yaml:8:10: spec.baked: must be true or false, is 3",
    ]


@pytest.mark.parametrize("number", ["7", "+7", "100"])
def test_a_number_that_everybody_reads_alike_is_right(number: str) -> None:
    (document,) = parse_documents(f"{HEAD}{GOOD}  percent: {number}\n", "f.yaml")
    assert validate(Cake, document).spec.percent == int(number)


def test_faults_without_end_are_cut_off() -> None:
    keys = "".join(f"  key{number}: 1\n" for number in range(MAX_FAULTS + 10))
    found = check(f"{HEAD}{GOOD}{keys}")
    assert len(found) == MAX_FAULTS + 1
    assert found[-1] == "f.yaml:105:3: and 10 more, which are told once these are mended"


def test_python_names_are_no_keys() -> None:
    found = check(f"{HEAD}spec:\n  slices: [{{name: a, weight_grams: 3}}]\n")
    assert found == [
        "f.yaml:5:22: spec.slices[0].weight_grams: is not a known key | did you mean weightGrams?",
    ]


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    text = HEAD.replace("name: c", "nmae: c") + "spec:\n  taste: 3\n  slices: [{}, 4]\n  percent: x\n"
    assert [line.split(" ")[0] for line in check(text)] == [
        "f.yaml:3:12:",
        "f.yaml:5:10:",
        "f.yaml:6:12:",
        "f.yaml:6:12:",
        "f.yaml:6:16:",
        "f.yaml:7:12:",
    ]


def test_rules_over_several_fields_point_at_their_field() -> None:
    assert check(f"{HEAD}{GOOD}  percent: 13\n  baked: false\n") == [
        "f.yaml:5:19: spec.slices[0].name: is raw",
        "f.yaml:6:12: spec.percent: brings bad luck | take 12",
    ]


def test_a_good_document_becomes_the_model() -> None:
    (document,) = parse_documents(HEAD + GOOD, "f.yaml")
    cake = validate(Cake, document)
    assert cake.spec.slices == (Slice(name="a", weight_grams=3),)
    assert cake.metadata.namespace == "default"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "kind: Cake",
            [
                (
                    "f.yaml:1:1: apiVersion: must be emberpool.dev/v1alpha1, is missing | write apiVersion:"
                    " emberpool.dev/v1alpha1"
                )
            ],
            id="no-version",
        ),
        pytest.param(
            "apiVersion: apps/v1\nkind: Deployment",
            [
                (
                    'f.yaml:1:13: apiVersion: must be emberpool.dev/v1alpha1, is "apps/v1" | this is no document of'
                    " Emberpool's: keep it in another file or folder"
                ),
                'f.yaml:2:7: kind: must be one of Cake, is "Deployment" | kind says which format the document has',
            ],
            id="something-else",
        ),
        pytest.param(
            "apiVersion: emberpool.dev/v1alpha1\nkind: cakes",
            ['f.yaml:2:7: kind: must be one of Cake, is "cakes" | did you mean Cake?'],
            id="misspelt-kind",
        ),
        pytest.param(
            "apiVersion: emberpool.dev/v1alpha1\nkind: [Cake]",
            ["f.yaml:2:1: kind: must be one of Cake, is a list | kind says which format the document has"],
            id="kind-of-a-wrong-type",
        ),
        pytest.param(
            "apiVersion: emberpool.dev/v1\nkind: Cake",
            [
                (
                    'f.yaml:1:13: apiVersion: must be emberpool.dev/v1alpha1, is "emberpool.dev/v1" | write apiVersion:'
                    " emberpool.dev/v1alpha1"
                )
            ],
            id="another-version",
        ),
        pytest.param(
            "apiVersion: emberpool.dev/v1alpha1\nkind: DrillScenario",
            [
                (
                    'f.yaml:2:7: kind: must be one of Cake, is "DrillScenario" | a DrillScenario is checked with `emberpool'
                    " drill validate FILE`"
                )
            ],
            id="a-drill",
        ),
        pytest.param(
            "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet",
            [
                (
                    'f.yaml:2:7: kind: must be one of Cake, is "Fleet" | a Fleet is checked with `emberpool policy validate'
                    " FILE`"
                )
            ],
            id="a-policy-where-a-drill-is-wanted",
        ),
        pytest.param(
            "apiVersion: emberpool.dev/v1alpha1\nkind: AgentList",
            [
                (
                    'f.yaml:2:7: kind: must be one of Cake, is "AgentList" | an AgentList is given to `emberpool controller'
                    " --agents FILE`"
                )
            ],
            id="a-list-of-agents",
        ),
    ],
)
def test_what_kind_of_document_it_is(text: str, expected: list[str]) -> None:
    assert check(text) == expected


def test_an_error_reads_as_place_fault_blank_line_hint() -> None:
    (document,) = parse_documents(f"{HEAD}{GOOD}  percent: 13\n", "policies/cake.yaml")
    with pytest.raises(PolicyError) as raised:
        validate(Cake, document)
    assert str(raised.value) == "policies/cake.yaml:6:12: spec.percent: brings bad luck\n\nhint: take 12"


@pytest.mark.parametrize(
    ("key", "here"), [("maxReplicas", "maxSeats of a Fleet"), ("behavior", "scaleUp and scaleDown")]
)
def test_a_word_of_the_hpa_is_told_what_it_is_called_here(key: str, here: str) -> None:
    text = (
        "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\nmetadata: {name: a}\n"
        f"spec: {{maxSeats: 3, {key}: 1}}\n"
    )
    (document,) = parse_documents(text, "f.yaml")
    with pytest.raises(PolicyError) as raised:
        validate(Fleet, document)
    assert f"here that is {here}" in str(raised.value)
