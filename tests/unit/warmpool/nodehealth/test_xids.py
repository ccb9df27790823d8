"""The table of error codes, and what the driver's messages say."""

from pathlib import Path
from typing import Any

import pytest

from scaler.policy.compile import check
from scaler.policy.document import contents_of
from scaler.policy.xid_table import OF_APPLICATIONS as POLICY_OF_APPLICATIONS
from scaler.policy.xid_table import XidTable as Document
from warmpool.nodehealth.xids import (
    DEFAULT_TABLE,
    OF_APPLICATIONS,
    LinkFault,
    When,
    XidRule,
    caused_by,
    link_fault,
    table_of,
)
from warmpool.seats import Verdict

FILE = Path(__file__).resolve().parents[4] / "policies/xid-table.yaml"


def shipped() -> dict[str, Any]:
    (document,) = contents_of(FILE.read_bytes(), str(FILE)).documents
    item = check(document)
    assert isinstance(item, Document)
    return item.spec.model_dump(mode="json", by_alias=True)


def without_note(rule: XidRule) -> tuple[Any, ...]:
    return rule.verdict, rule.when, rule.occurrences, rule.within_seconds


def test_what_holds_without_a_document_is_what_the_shipped_one_says() -> None:
    table = table_of(shipped())
    assert table.unlisted is DEFAULT_TABLE.unlisted
    assert {xid: without_note(rule) for xid, rule in table.rules.items()} == {
        xid: without_note(rule) for xid, rule in DEFAULT_TABLE.rules.items()
    }


def test_both_sides_call_the_same_errors_a_programs() -> None:
    assert OF_APPLICATIONS == POLICY_OF_APPLICATIONS


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"rules": "Bad"}, "rules: takes a list"),
        ({"rules": [{"xids": [79]}]}, r"rules\[0\]: 'verdict'"),
        ({"rules": [{"xids": [79], "verdict": "Worse"}]}, r"rules\[0\]: 'Worse'"),
        ({"rules": [{"xids": [0], "verdict": "Bad"}]}, "is no code of an error"),
        ({"rules": [{"xids": ["79"], "verdict": "Bad"}]}, "is no code of an error"),
        ({"rules": [{"xids": [79, 79], "verdict": "Bad"}]}, "listed twice"),
        ({"rules": [{"xids": [31], "verdict": "Bad"}]}, "never makes one Bad"),
        ({"unlisted": "Bad"}, "unlisted"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_its_place(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_of(spec)


def test_a_code_that_no_rule_is_about_is_recorded_or_what_the_table_says() -> None:
    assert table_of({}).rule(500).verdict is Verdict.OK
    assert table_of({"unlisted": "Suspect"}).rule(500).verdict is Verdict.SUSPECT
    assert DEFAULT_TABLE.rule(74).when is When.MULTI_GPU


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NETIR_LINK_EVT Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000)",
            LinkFault(unit="NETIR_LINK_EVT", fatal=True, link=8, subcode=4),
        ),
        (
            "NETIR Fatal XC0 i0 Link -1 (0x025001c6 0x00000000)",
            LinkFault(unit="NETIR", fatal=True, link=-1, subcode=37),
        ),
        (
            "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
            LinkFault(unit="RLW_RXPIPE", fatal=False, link=13, subcode=0),
        ),
        (
            "pid=1234, name=python3, NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC 1 i 2 Link 01 [0x0000000a]",
            LinkFault(unit="NETIR_LINK_EVT/NETIR_LINK_DOWN", fatal=True, link=1, subcode=0),
        ),
        ("RLW_REMAP Nonfatal XC0 i0 Link 02", LinkFault(unit="RLW_REMAP", fatal=False, link=2, subcode=None)),
        ("SAW_MVB Fatal XC0 i0 Link 0 (x)", LinkFault(unit="SAW_MVB", fatal=True, link=0, subcode=None)),
        ("pid=1, name=python3, Contained ECC error", None),
        ("Fatal", None),
        ("", None),
    ],
)
def test_a_fault_of_nvlink_5_says_whether_it_is_fatal_and_which_it_is(
    text: str, expected: LinkFault | None
) -> None:
    assert link_fault(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149", 149),
        ("pid=1, name=python3, Ch 00000001", None),
    ],
)
def test_an_error_that_follows_from_another_says_so(text: str, expected: int | None) -> None:
    assert caused_by(text) == expected
