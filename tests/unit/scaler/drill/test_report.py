import dataclasses
import importlib
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import BaseModel
from rich.console import Console

from scaler.drill import figures
from scaler.drill.figures import REPORT_VERSION, Report
from scaler.drill.records import Outcome, Record
from scaler.drill.report import Written, read_report, write_report, write_requests
from scaler.drill.summary import print_summary
from scaler.drill.tables import all_tables, milliseconds

README = Path(figures.__file__).with_name("README.md")


class Page(HTMLParser):
    """Collects what a page would fetch, and whether its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetches: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetches += [
            value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "data", "action"}
        ]
        if tag not in {"meta", "br", "img", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def written(sample: Report, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """One report on disk for all tests that only read it: pictures take a second to draw."""
    return write_report(sample, tmp_path_factory.mktemp("report"))


def test_all_files_are_written(written: Written) -> None:
    assert written.picture is not None
    assert written.picture.read_bytes().startswith(b"\x89PNG")
    assert written.hint == ""
    assert {path.name for path in written.folder.iterdir()} == {
        "report.json",
        "report.md",
        "report.html",
        "summary.png",
    }


def test_the_page_needs_nothing_but_itself(written: Written) -> None:
    text = written.html.read_text()
    page = Page(text)
    assert all(target.startswith("#") for target in page.fetches)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert page.tags.count("svg") == 3
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_the_page_takes_its_text_colour_from_the_theme(written: Written) -> None:
    text = written.html.read_text()
    assert "currentColor" in text
    assert "#010203" not in text
    assert "prefers-color-scheme: dark" in text


def test_words_of_the_scenario_are_escaped(written: Written) -> None:
    assert "&lt;angle&gt;" in written.html.read_text()
    assert "<angle>" not in written.html.read_text()


def test_every_table_is_in_both_texts(written: Written, sample: Report) -> None:
    for table in all_tables(sample):
        assert f"## {table.title}" in written.markdown.read_text()
        assert table.title == "Verdict" or f"<h2>{table.title}</h2>" in written.html.read_text()
        assert all(len(row) == len(table.header) for row in table.rows)


def test_a_report_can_be_read_back_and_drawn_again(written: Written, sample: Report, tmp_path: Path) -> None:
    again = read_report(written.json)
    assert again == sample
    first = written.html.read_text()
    assert write_report(again, tmp_path).html.read_text() == first


def test_the_json_is_versioned_and_spelt_as_documented(written: Written) -> None:
    data = json.loads(written.json.read_text())
    assert data["reportVersion"] == REPORT_VERSION == 1
    assert data["arms"][0]["burstTtft"]["p99"] == 200.0


def test_every_field_is_described_in_the_readme() -> None:
    text = README.read_text()
    models = [
        one
        for one in vars(figures).values()
        if isinstance(one, type) and issubclass(one, BaseModel) and one.model_fields
    ]
    missing = [
        f"{model.__name__}.{field.alias}"
        for model in models
        for field in model.model_fields.values()
        if f"`{field.alias}`" not in text
    ]
    assert len(models) > 20
    assert missing == []


def test_without_matplotlib_there_are_tables_and_a_hint(
    sample: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "scaler.drill.plots", raising=False)
    package = importlib.import_module("scaler.drill")
    monkeypatch.delattr(package, "plots", raising=False)
    written = write_report(sample, tmp_path)
    assert written.picture is None
    assert "emberpool[drill]" in written.hint
    assert "emberpool[drill]" in written.html.read_text()
    assert written.json.exists()
    assert written.markdown.exists()


def test_the_summary_shows_verdict_and_place(written: Written, sample: Report) -> None:
    console = Console(record=True, width=150, file=io.StringIO())
    print_summary(sample, written, console)
    text = console.export_text()
    assert "drill sample: pass" in text
    assert "report.html" in text
    assert "4.00 s" in text or "4 s" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 ms"), (3.21, "3.2 ms"), (85.4, "85 ms"), (1250.0, "1.25 s"), (4000.0, "4 s")],
)
def test_latencies_read_well(value: float, text: str) -> None:
    assert milliseconds(value) == text


def test_requests_are_written_one_a_line_in_order(tmp_path: Path) -> None:
    first = Record(
        policy="chat", stage="s", intended=1.0, sent=1.0, first=1.1, last=2.0, tokens=3, outcome=Outcome.OK
    )
    write_requests([dataclasses.replace(first, intended=2.0), first], tmp_path / "requests.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [line["intended"] for line in lines] == [1.0, 2.0]
    assert lines[0]["outcome"] == "Ok"
