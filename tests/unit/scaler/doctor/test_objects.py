"""Reading objects, and whom selectors select."""

from typing import Any

import pytest

from scaler.doctor.objects import Object, at, listed, mapping, selects, text, texts, whole

BODY: dict[str, Any] = {"a": {"b": [1, {"c": "x"}]}, "n": 3, "t": True, "l": {"k": "v", "n": 1}}


def test_what_isnt_there_or_of_another_kind_is_absent() -> None:
    assert at(BODY, "a", "b", 1, "c") == "x"
    assert at(BODY, "a", "b", 9) is None
    assert at(BODY, "a", "b", -1) is None
    assert at(BODY, "n", "x") is None
    assert (text(BODY, "n"), text(BODY, "a", "b", 1, "c")) == ("", "x")
    assert (whole(BODY, "n"), whole(BODY, "t"), whole(BODY, "l", "k")) == (3, None, None)
    assert (listed(BODY, "n"), listed(BODY, "a", "b")) == ((), [1, {"c": "x"}])
    assert (mapping(BODY, "n"), texts(BODY, "l")) == ({}, {"k": "v"})


def test_an_object_is_named_as_findings_name_it() -> None:
    assert str(Object({"kind": "Pod", "metadata": {"name": "p", "namespace": "serving"}})) == "Pod serving/p"
    assert str(Object({"kind": "Node", "metadata": {"name": "n"}})) == "Node n"


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        pytest.param({}, True, id="empty"),
        pytest.param(None, False, id="none"),
        pytest.param("app=spares", False, id="no-selector"),
        pytest.param({"matchLabels": {"app": "spares"}}, True, id="label"),
        pytest.param({"matchLabels": {"app": "other"}}, False, id="other-label"),
        pytest.param({"matchLabels": {"app": "spares", "x": "y"}}, False, id="one-of-two"),
        pytest.param(expression("In", "a", "spares"), True, id="in"),
        pytest.param(expression("In", "a"), False, id="not-in-values"),
        pytest.param(expression("NotIn", "a"), True, id="notin"),
        pytest.param(expression("NotIn", "a", key="missing"), True, id="notin-of-a-missing-label"),
        pytest.param(expression("Exists"), True, id="exists"),
        pytest.param(expression("Exists", key="missing"), False, id="exists-not"),
        pytest.param(expression("DoesNotExist"), False, id="does-not-exist"),
        pytest.param(expression("Gt", "1"), False, id="unknown-operator"),
        pytest.param({"matchLabels": {"app": "spares"}, **expression("In", "a")}, False, id="both-must-hold"),
    ],
)
def test_selectors(selector: Any, selected: bool) -> None:  # noqa: FBT001
    assert selects(selector, {"app": "spares"}) is selected
