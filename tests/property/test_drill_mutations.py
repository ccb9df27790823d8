"""Drills and lists of agents with faults in them: refused with places, each fault told, and nothing that only follows."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.static.listing import load_agents
from scaler.drill.loading import load_scenario
from scaler.errors import PolicyError, PolicyFault
from scaler.policy.source import parse_documents
from tests.property.test_policy_mutations import (
    EDITS,
    Mapping,
    Place,
    begins,
    container_of,
    many,
    mutate,
    places,
    several,
    tree,
    tree_copy,
    within,
    written,
)

ROOT = Path(__file__).parents[2]
AGENTS = """
apiVersion: emberpool.dev/v1alpha1
kind: AgentList
metadata: {name: all}
spec:
  fleets:
    - name: spares
      seats:
        - {name: seat-0, agent: "http://10.0.0.1:9081", node: one, gpus: [GPU-1, GPU-2]}
        - {name: seat-1, agent: "http://10.0.0.2:9081"}
    - {name: own, seats: [{name: seat-2, agent: "http://10.0.0.3:9081"}]}
"""
FILES: list[tuple[Callable[[Path], object], str]] = [
    (load_scenario, (ROOT / "policies/drills/smoke.yaml").read_text()),
    (load_scenario, (ROOT / "policies/reference/drill-scenario.yaml").read_text()),
    (load_agents, AGENTS),
]
LOADED_BY = [load for load, _ in FILES]
TREES = [tree(parse_documents(text, "f.yaml")[0].data) for _, text in FILES]
PLACES = [list(within(each)) for each in TREES]
EXAMPLES = range(len(TREES))
Faulty = tuple[str, Place]


def faults_of(example: int, text: str) -> tuple[PolicyFault, ...]:
    """Load a file, and return what is said of it; every place is in it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "f.yaml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            LOADED_BY[example](file)
        except PolicyError as error:
            lines = text.splitlines() or [""]
            for fault in error.faults:
                assert 1 <= fault.line <= len(lines), fault
                assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1, fault
            return error.faults
    return ()


@st.composite
def mutated(draw: st.DrawFn) -> tuple[int, str]:
    example = draw(st.sampled_from(EXAMPLES))
    document = tree_copy(TREES[example])
    for _ in range(draw(st.integers(1, 3))):
        if not (everywhere := list(places(document))):
            break
        mutate(draw, *everywhere[draw(st.integers(0, len(everywhere) - 1))])
    return example, written(document) + "\n"


@many
@given(mutated())
def test_whatever_is_written_is_loaded_or_refused_with_its_places(drawn: tuple[int, str]) -> None:
    faults_of(*drawn)


@cache
def told(example: int, edits: frozenset[Faulty]) -> frozenset[tuple[str, str]]:
    """Return what is said of an edited example, and of which part; lines that messages name move with the edits."""
    document = tree_copy(TREES[example])
    for name, place in edits:
        EDITS[name](container_of(document, place), place[-1])
    found = faults_of(example, written(document) + "\n")
    assert [(each.line, each.column) for each in found] == sorted((each.line, each.column) for each in found)
    return frozenset((each.path, re.sub(r"(line |yaml:)[0-9]+", r"\1N", each.message)) for each in found)


def path_of(example: int, edit: Faulty) -> str:
    """Return the path of an edited place, as faults have it."""
    name, place = edit
    path, node = "", TREES[example]
    for depth, index in enumerate(place, 1):
        if isinstance(node, Mapping):
            key, inner = node[index]
            key = f"no{key}" if name == "a name" and depth == len(place) else key
            path, node = f"{path}.{key}" if path else key, inner
        else:
            path, node = f"{path}[{index}]", node[index]
    return path


def of_itself(example: int, edit: Faulty) -> frozenset[tuple[str, str]]:
    """Return what is said of the edited place itself, and not of others that it no longer fits to."""
    own = {path_of(example, edit), ""}
    return frozenset(fault for fault in told(example, frozenset({edit})) if fault[0] in own)


def an_edit(example: int) -> st.SearchStrategy[Faulty]:
    return st.tuples(st.sampled_from(sorted(EDITS)), st.sampled_from(PLACES[example]))


@several
@given(st.data())
def test_of_one_fault_nothing_else_is_told(data: st.DataObject) -> None:
    example = data.draw(st.sampled_from(EXAMPLES))
    edit = data.draw(an_edit(example))
    for path, message in told(example, frozenset({edit})) - of_itself(example, edit):
        # what a key that isn't known stands for is missing; and in a list that is none, an entry is wrong
        assert "is missing" in message if edit[0] == "a name" else path.startswith(path_of(example, edit))


@st.composite
def two_edits(draw: st.DrawFn) -> tuple[int, Faulty, Faulty]:
    example = draw(st.sampled_from(EXAMPLES))
    return example, draw(an_edit(example)), draw(an_edit(example))


def hides(example: int, one: Place, other: Place) -> bool:
    """Whether nobody can know what is wrong at one place, because of what is wrong at the other."""
    if one[: len(other)] == other:
        return True  # it lies inside
    head = other[:-1]
    return begins(container_of(TREES[example], other), other[-1]) and one[: len(head)] == head


@several
@given(two_edits())
def test_of_two_faults_each_is_told(drawn: tuple[int, Faulty, Faulty]) -> None:
    example, one, other = drawn
    if hides(example, one[1], other[1]) or hides(example, other[1], one[1]):
        return
    expected = of_itself(example, one) | of_itself(example, other)
    assert told(example, frozenset({one, other})) >= expected


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_themselves_are_right_so_that_edits_mean_something(example: int) -> None:
    assert told(example, frozenset()) == frozenset()
