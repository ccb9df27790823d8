"""The reference page is what the code declares, and the code exposes nothing else."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import loader
import scaler
import warmpool
from scaler.runtime.metrics.reference import PROCESSES, page
from warmpool.metric_families import Family, Kind

ROOT = Path(scaler.__file__).parents[1]
PAGE = ROOT / "deploy" / "monitoring" / "METRICS.md"
FAMILIES = [family for _, families in PROCESSES.values() for family in families]
MAKERS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


def test_the_page_is_fresh() -> None:
    fresh = page()
    assert PAGE.read_text("utf-8") == fresh, (
        "run: python -m scaler.runtime.metrics.reference > deploy/monitoring/METRICS.md"
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_explained(family: Family) -> None:
    (line,) = [
        line for line in page().splitlines() if line.startswith(f"| `{family.name}` | {family.kind} |")
    ]
    assert f"| {family.unit} |" in line
    assert all(f"`{label.name}`" in line for label in family.labels)
    assert family.help.endswith(".")
    assert all(label.source for label in family.labels)


def test_every_name_is_used_once() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@cache
def calls() -> list[tuple[Path, ast.Call, str]]:
    """Every call in the product's files that name a metric, with the name of what is called."""
    return list(find_calls())


def find_calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for package in (loader, scaler, warmpool):
        for path in Path(package.__path__[0]).rglob("*.py"):
            text = path.read_text("utf-8")
            for node in ast.walk(ast.parse(text)) if "emberpool_" in text else ():
                if isinstance(node, ast.Call):
                    name = (
                        node.func.attr
                        if isinstance(node.func, ast.Attribute)
                        else getattr(node.func, "id", "")
                    )
                    yield path, node, name


def test_nothing_is_exposed_that_is_not_declared() -> None:
    known = {family.name for family in FAMILIES} | {family.stem for family in FAMILIES}
    undeclared = set()
    for path, node, maker in calls():
        if not node.args or not (maker in MAKERS or maker.endswith("MetricFamily")):
            continue
        name = getattr(node.args[0], "value", None)
        if isinstance(name, str) and name.startswith("emberpool_") and name not in known:
            undeclared.add(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert undeclared == set()


def declared(module: ModuleType) -> Iterator[Family]:
    for value in vars(module).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Family):
                yield each


def test_every_module_that_declares_families_is_on_the_page() -> None:
    paths = {path for path, node, name in calls() if name == "Family" and node.keywords}
    modules = [import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in paths]
    found = {family.name for module in modules for family in declared(module)}
    assert found
    assert found == {family.name for family in FAMILIES}


@pytest.mark.parametrize("family", [f for f in FAMILIES if "promotion" in f.name and f.buckets], ids=str)
def test_buckets_of_promotions_are_dense_from_5_ms_to_5_s(family: Family) -> None:
    assert family.kind is Kind.HISTOGRAM
    assert (family.buckets[0], family.buckets[-1]) == (0.005, 5.0)
    steps = [b / a for a, b in zip(family.buckets, family.buckets[1:], strict=False)]
    assert max(steps) <= 2.0
