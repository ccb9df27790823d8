"""The rules of a table of error codes that no single value can break."""

import pytest

from scaler.errors import PolicyError
from scaler.policy.compile import check
from scaler.policy.document import parse_documents

HEAD = "apiVersion: emberpool.dev/v1alpha1\nkind: XidTable\nmetadata: {name: xids}\nspec:\n  rules:\n"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(
            "    - {xids: [79], verdict: Bad, withinSeconds: 60, note: gone}",
            [
                (
                    "f.yaml:6:49: spec.rules[0].withinSeconds: is the time over which occurrences are counted, and one is"
                    " enough here | set occurrences, or remove withinSeconds"
                )
            ],
            id="a-time-over-which-nothing-is-counted",
        ),
        pytest.param(
            "    - {xids: [79, 13], verdict: Bad, note: gone}",
            [
                (
                    "f.yaml:6:19: spec.rules[0].xids[1]: Xid 13 comes from applications on healthy GPUs and alone never makes"
                    " one Bad | use Suspect, or remove it from this rule"
                )
            ],
            id="an-applications-own-fault",
        ),
        pytest.param(
            "    - {xids: [79], verdict: Bad, note: gone}\n    - {xids: [79], verdict: Record, note: gone}",
            ["f.yaml:7:15: spec.rules[1].xids[0]: Xid 79 is listed twice | keep it in one rule"],
            id="a-code-in-two-rules",
        ),
    ],
)
def test_a_broken_rule_is_said_with_its_place(rules: str, expected: list[str]) -> None:
    (document,) = parse_documents(HEAD + rules, "f.yaml")
    with pytest.raises(PolicyError) as raised:
        check(document)
    assert [str(fault).replace("\n\nhint: ", " | ") for fault in raised.value.faults] == expected


def test_several_errors_may_be_counted_over_any_time() -> None:
    rule = "    - {xids: [79], verdict: Bad, occurrences: 2, withinSeconds: 60, note: gone}"
    (document,) = parse_documents(HEAD + rule, "f.yaml")
    assert check(document).kind == "XidTable"
