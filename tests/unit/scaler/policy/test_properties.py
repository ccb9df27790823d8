"""Whatever is written into a policy file: a usable set, or faults with places inside the file. Never anything else."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler.errors import PolicyError
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.source import parse_documents

EXAMPLES = [
    file.read_text(encoding="utf-8")
    for file in sorted((Path(__file__).parents[4] / "policies").glob("*.yaml"))
]
FRAGMENTS = [
    *"\t \n:-#&*!|>'\"%@`{}[],?~",
    ": ",
    "- ",
    "---\n",
    "<<: ",
    "&a ",
    "*a",
    "!!int ",
    "null",
    "on",
    "1e999",
    ".nan",
    "-1",
    "99999999999999999999",
    "0x",
    "spec",
    "kind: Fleet\n",
    "\x00",
    "\ud83d\ude00",
    "\u2028",
    "\\",
]

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["Fixed", "Enforce", "VLLM", "spares", "chat"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def checked(text: str) -> PolicySet | None:
    """Compile; None when it was refused with places that are in the text."""
    try:
        return compile_set(parse_documents(text, "f.yaml"))
    except PolicyError as error:
        faults = error.faults
    lines = text.splitlines()
    assert faults
    for fault in faults:
        assert fault.file == "f.yaml"
        assert 1 <= fault.line <= len(lines) + 1
        assert fault.column >= 1
        assert fault.message
    return None


@st.composite
def edited(draw: st.DrawFn) -> str:
    """Take an example and cut, double or replace pieces of its text."""
    text = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(st.sampled_from(FRAGMENTS) | st.just(text[start:end] * 2)) + text[end:]
    return text


@cache
def examples() -> list[list[Any]]:
    """What the examples' documents say: read by who runs these tests, not by whoever collects them."""
    return [[document.data for document in parse_documents(text, "f.yaml")] for text in EXAMPLES]


@st.composite
def replanted(draw: st.DrawFn) -> str:
    """Take an example's tree and put something else at a place in it."""
    trees: list[Any] = json.loads(json.dumps(draw(st.sampled_from(examples()))))
    for _ in range(draw(st.integers(1, 3))):
        here: Any = trees
        while True:
            keys = list(range(len(here))) if isinstance(here, list) else sorted(here)
            key = draw(st.sampled_from(keys))
            inner = here[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
                break
            here = inner
        match draw(st.sampled_from(["replace", "remove", "rename"])):
            case "remove" if len(here) > 1:
                del here[key]
            case "rename" if isinstance(here, dict):
                here[f"{key}{draw(st.sampled_from('xS2'))}"] = here.pop(key)
            case _:
                here[key] = draw(values)
    return "\n---\n".join(json.dumps(tree) for tree in trees)


@quick
@given(edited())
def test_edited_files(text: str) -> None:
    checked(text)


@quick
@given(replanted())
def test_replanted_trees(text: str) -> None:
    checked(text)


@quick
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    checked(text)


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_usable_so_that_mutations_mean_something(text: str) -> None:
    assert checked(text) is not None
