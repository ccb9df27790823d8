"""The reference page: fresh, whole, and every example on it works."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.cli import formats
from scaler.cli.app import main
from scaler.cli.formats import FORMATS, POLICIES
from scaler.drill.loading import load_scenario
from scaler.policy import guide, reference
from scaler.policy.base import DNS_LABEL
from scaler.policy.compile import KINDS, compile_set
from scaler.policy.document import load_documents, parse_documents
from scaler.policy.lint.objectives import ENGINE_EDGES, GATEWAY_EDGES
from scaler.policy.reference import Section, layout_of
from scaler.policy.schema import schema_of_all
from scaler.policy.source import model_for, validate
from scaler.policy.unbuilt import UNBUILT

PAGES = {POLICIES / reference.HOME, *(POLICIES / path for path in reference.OWN_PAGES.values())}
SCHEMA = schema_of_all(FORMATS)
LAYOUT = layout_of(SCHEMA["definitions"])
TEXTS = {page: page.read_text("utf-8") for page in sorted(PAGES)}
HOME = TEXTS[POLICIES / reference.HOME]
TEXT = "\n".join([HOME, *(text for text in TEXTS.values() if text is not HOME)])
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ emberpool (.*)$", TEXT, flags=re.MULTILINE)
each_kind = pytest.mark.parametrize("kind", FORMATS)

NOT_SHOWN = {
    "ScalingPolicy: `spec.objectives.ttft`": {"seconds"},
    "ScalingPolicy: `spec.signals[].authorization`": {"basic"},
    "DrillScenario: `spec.thresholds`": {"switchP99Milliseconds"},
}
"""Keys that an example can't have beside those that it has: they exclude each other, or ask for what it doesn't do."""


def headings(text: str) -> list[str]:
    found: list[str] = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE
    )
    return found


def anchors(text: str) -> list[str]:
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(text)]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_each_page_is_fresh(page: Path) -> None:
    assert formats.generated()[page] == TEXTS[page], "run: make generate"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.search(r"kind: (\w+)", block)[1])
def test_every_document_on_the_page_is_right(block: str) -> None:
    for document in parse_documents(block, "README.md"):
        validate(model_for(FORMATS, document), document)


def test_the_shared_fleet_and_the_examples_are_sets_that_can_be_used() -> None:
    shared, *examples = BLOCKS
    assert len(compile_set(parse_documents(shared, "README.md")).policies) > 1
    of_sets = [
        document
        for text in examples
        for document in parse_documents(text, "README.md")
        if document.data["kind"] in KINDS
    ]
    assert {document.data["kind"] for document in of_sets} == set(KINDS)
    assert len(compile_set(of_sets).fleets) == 1


def test_the_example_of_a_drill_can_be_run() -> None:
    loaded = load_scenario(formats.example_file("DrillScenario"))
    assert set(loaded.policies.policies) == {model.policy for model in loaded.scenario.spec.models}


@pytest.mark.parametrize("section", LAYOUT.values(), ids=lambda section: section.title)
def test_the_table_of_a_mapping_says_of_each_field_what_editors_show(section: Section) -> None:
    rows = dict(rows_of(section))
    assert list(rows) == list(section.node["properties"])
    for key, node in section.node["properties"].items():
        value, unit, default, meaning = rows[key]
        assert value
        assert meaning.startswith(node["description"])
        assert all(
            f"`{example}`" in meaning for example in node.get("examples", ()) if str(example).isalnum()
        )
        assert unit == node.get("items", node).get("x-unit", "")
        assert (default == "**required**") == (key in section.node.get("required", ()))
        assert bool(default) == bool({"default", "x-default"} & set(node)) or key in section.node["required"]


def rows_of(section: Section) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The rows of a section's table, by key."""
    _, found, rest = TEXT.partition(f"### {section.title}\n")
    assert found
    for line in rest.partition("\n#")[0].replace("a DNS label", DNS_LABEL).splitlines():
        if line.startswith("| `"):
            key, *cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            yield key.strip("`"), tuple(cells)


def test_every_kind_has_a_chapter_and_an_example() -> None:
    assert set(FORMATS) == set(guide.KINDS)
    for kind in FORMATS:
        page = TEXTS[POLICIES / reference.OWN_PAGES.get(kind, reference.HOME)]
        assert {kind, f"{kind}: an example"} <= set(headings(page))


@each_kind
def test_an_example_shows_every_key_that_can_stand_beside_the_others(kind: str) -> None:
    (document,) = load_documents([formats.example_file(kind)])
    shown: dict[str, set[str]] = {}
    collect(SCHEMA["definitions"][kind], document.data, shown)
    for identity, section in LAYOUT.items():
        if section.chapter == kind and identity in shown:
            missing = set(section.node["properties"]) - shown[identity]
            assert missing - NOT_SHOWN.get(section.title, set()) == set(), section.title


def collect(node: dict[str, Any], data: Any, shown: dict[str, set[str]]) -> None:
    """Collect the keys that data has, by mapping; an entry of a list adds to what other entries show."""
    if isinstance(data, list):
        for item in data:
            collect(node["items"], item, shown)
    for form in reference.forms_of(node) if isinstance(data, dict) else ():
        if form.get("title") in {None, data.get("type"), data.get("kind")}:
            shown.setdefault(reference.identity(form), set()).update(data)
            for key, inner in data.items():
                collect(form["properties"].get(key, {}), inner, shown)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_or_to_one_heading_of_the_page(page: Path) -> None:
    known = anchors(TEXTS[page])
    assert len(set(known)) == len(known)
    links = re.findall(r"\]\((?!https:)([^)]*)\)", TEXTS[page])
    assert links
    assert [link for link in links if link.startswith("#") and link[1:] not in known] == []
    assert [link for link in links if not link.startswith("#") and not (page.parent / link).exists()] == []


def test_what_a_dns_label_is_stands_there_once() -> None:
    assert TEXT.count("lower-case letters, digits") == 1


def test_the_guide_knows_the_edges_of_histograms() -> None:
    text = " ".join(guide.BEFORE.split())
    for edges in (ENGINE_EDGES, GATEWAY_EDGES):
        *most, last = (f"{edge:g}" for edge in edges if edge >= 0.1)
        assert f"{', '.join(most)} and {last}" in text


def test_what_is_not_acted_on_yet_is_marked() -> None:
    for entry in UNBUILT:
        rest = TEXT.partition(f"{entry.instead}.")
        assert rest[1], entry
        assert re.search(r"Not acted on yet:(\*\*)? $", rest[0])


def test_every_command_about_policies_is_told() -> None:
    told = set(re.findall(r"^\| `(policy \w+)` \|", HOME, flags=re.MULTILINE))
    assert told == {f"policy {name}" for name in ("new", "validate", "lint", "explain", "diff", "status")}


def test_every_column_of_a_lint_report_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "lint", str(POLICIES / "shared-spares.yaml")]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    heads = [cells for cells in lines if len(cells) > 1 and re.fullmatch(r"[A-Z][A-Z -]+", cells[0])]
    columns = {"OF" if cell.startswith("OF ") else cell for cells in heads for cell in cells}
    assert len(columns) > 10
    assert [column for column in columns if f"`{column}`" not in HOME] == []


def test_every_key_that_the_guide_names_exists() -> None:
    known = {
        f"{place}.{key}"
        for section in LAYOUT.values()
        for place in section.places
        for key in section.node["properties"]
    }
    known |= {place for section in LAYOUT.values() for place in section.places}
    named = set(re.findall(r"`(spec\.[\w.\[\]]+)`", guide.BEFORE + guide.AFTER))
    assert len(named) > 10
    assert named - known == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_on_the_page_is_one(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(POLICIES.parent)
    if command.startswith("drill run"):  # takes minutes; that it can be run is what validate says
        load_scenario(POLICIES.parent / command.removeprefix("drill run "))
    else:
        assert main(command.split()) == 0, capsys.readouterr().err


def test_every_file_is_listed_with_what_it_shows() -> None:
    listed = dict(re.findall(r"^\| \[([\w./-]+)\]\(\1\) \| (.*) \|$", HOME, flags=re.MULTILINE))
    folders = (POLICIES, POLICIES / "drills")
    assert set(listed) == {
        str(file.relative_to(POLICIES)) for folder in folders for file in folder.glob("*.yaml")
    }
    assert all(len(summary) > 20 for summary in listed.values())


@pytest.mark.parametrize(
    ("comment", "summary"),
    [
        ("# One. Two.\n", "One."),
        ("# One line,\n# and another:\n#\n# More.\n", "One line, and another."),
        ("# yaml-language-server: $schema=x\n# What it is\nkind: Fleet\n", "What it is."),
    ],
)
def test_a_file_is_summed_up_by_its_first_sentence(comment: str, summary: str) -> None:
    assert reference.summary(comment) == summary


def test_what_the_guide_names_of_the_shared_fleet_is_there() -> None:
    text = (POLICIES / "shared-spares.yaml").read_text("utf-8")
    named = re.findall(r"`([^`]+)`", guide.AFTER)
    assert named
    assert [name for name in named if name not in text] == []


def test_a_check_of_fresh_files_is_good_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in formats.generated()}
    assert formats.main(["--check"]) == 0
    assert capsys.readouterr() == ("", "")
    assert {path: path.stat().st_mtime_ns for path in before} == before
