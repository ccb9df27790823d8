"""`get` and `describe`: what a kind of object looks like, and how it is printed once or over and over."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from rich.live import Live
from rich.text import Text

from scaler.cli.answers import Reason, parse
from scaler.cli.client import Controller, Items, Source
from scaler.cli.failures import OK, Failed
from scaler.cli.human import NOTHING
from scaler.cli.kube_options import AtUrl, Target
from scaler.cli.options import Output
from scaler.cli.output import as_json, as_yaml, data, emit, note, table

Item = Mapping[str, Any]
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Column(Generic[Parsed]):
    """One column of a table.

    Attributes:
        header: its title.
        cell: makes the cell from an object and the Unix time.
        wide: shown with `-o wide` only.
    """

    header: str
    cell: Callable[[Parsed, float], str]
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Parsed]):
    """One kind of object that a controller knows.

    Attributes:
        noun: in singular, as the command line says it.
        plural: as the API says it.
        read: reads one object from its JSON.
        columns: of the table.
        source: where objects come from, as an error calls it.
        owner: the field with the object's owner, if objects are asked for by that and not by their own name.
        rows: makes the rows of an object that has several.
        namespaced: whether objects are in namespaces.
    """

    noun: str
    plural: str
    read: Callable[[Item], Parsed]
    columns: Sequence[Column[Any]]
    source: str = "the controller's answer"
    owner: str = ""
    rows: Callable[[Parsed], Sequence[Any]] = lambda item: (item,)
    namespaced: bool = True

    def table(self, items: Sequence[Item], now: float, *, wide: bool, namespaces: bool = False) -> Text:
        """Lay out objects as a table; each with its namespace in front, where they are of several."""
        namespaces = namespaces and self.namespaced
        columns = [column for column in self.columns if wide or not column.wide]
        of = [(item, row) for item in items for row in self.rows(parse(self.read, item, self.source))]
        header = [column.header for column in columns]
        cells = [[column.cell(row, now) for column in columns] for _, row in of]
        if namespaces:
            header = ["NAMESPACE", *header]
            cells = [
                [str(item.get("namespace") or NOTHING), *line]
                for (item, _), line in zip(of, cells, strict=True)
            ]
        return table(header, cells)

    def name_of(self, item: Item) -> str:
        """Return an object's name, behind its owner's if it has one."""
        name = f"{item.get('name')}"
        return f"{item.get(self.owner)}/{name}" if self.owner else name


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """From where, and how to print.

    Attributes:
        source: whom to ask.
        output: the format.
        watch: whether to go on.
    """

    source: Source
    output: Output
    watch: bool = False


def asked(target: Target) -> Source:
    """Return whom a command asks.

    Raises:
        UserError: a controller's address is no URL.
    """
    if isinstance(target, AtUrl):
        return Controller(target.url)
    from scaler.cli.sources import ClusterSource  # noqa: PLC0415 - aiohttp, which a controller alone doesn't need

    return ClusterSource(target)


def get(kind: Kind[Any], name: str | None, view: View) -> int:
    """Print one object or all of a kind.

    Raises:
        Failed: nobody answers, or there is no object of that name.
    """
    source = view.source
    if view.watch:
        _watch(kind, name, view, source)
    items = choose(kind, name, source.items(kind.plural))
    if not items and view.output in {Output.TABLE, Output.WIDE}:
        note(f"No {kind.plural} found.")
    else:
        namespaces = source.several_namespaces
        emit(rendered(kind, items, view.output, single=name is not None, namespaces=namespaces))
    return OK


def describe(kind: Kind[Parsed], name: str, source: Source) -> tuple[Parsed, Item]:
    """Fetch one object for a description, as it is read and as it came.

    Raises:
        Failed: nobody answers, or there is no object of that name, or one in each of several namespaces.
    """
    found = choose(kind, name, source.items(kind.plural))
    if len(found) > 1:
        namespaces = ", ".join(str(item.get("namespace")) for item in found)
        raise Failed(
            f"{len(found)} {kind.plural} are called {name}", hint=f"say which with --namespace: {namespaces}"
        )
    return parse(kind.read, found[0], kind.source), found[0]


def choose(kind: Kind[Any], name: str | None, items: Sequence[Item]) -> Sequence[Item]:
    """Pick the object of a name, or those of an owner, or all.

    Raises:
        Failed: there is none of that name.
    """
    if name is None:
        return items
    field = kind.owner or "name"
    chosen = [item for item in items if item.get(field) == name]
    if not chosen:
        known = ", ".join(dict.fromkeys(str(item.get(field)) for item in items))
        hint = f"there are: {known}" if known else f"there are no {kind.plural}"
        of = f"{kind.noun} of {kind.owner}" if kind.owner else kind.noun
        raise Failed(f"there is no {of} {name}", hint=hint)
    return chosen


def rendered(
    kind: Kind[Any], items: Sequence[Item], output: Output, *, single: bool, namespaces: bool = False
) -> Text | str:
    """Render objects in one of the formats of `-o`; a single one by itself, several as `items`."""
    single = single and len(items) == 1 and not kind.owner
    whole: object = items[0] if single else {"items": list(items)}
    match output:
        case Output.JSON:
            return as_json(whole)
        case Output.YAML:
            return as_yaml(whole)
        case Output.NAME:
            return "\n".join(f"{kind.noun}/{kind.name_of(item)}" for item in items)
        case _:
            return kind.table(items, time.time(), wide=output is Output.WIDE, namespaces=namespaces)


def _watch(kind: Kind[Any], name: str | None, view: View, source: Source) -> NoReturn:
    """Print again and again until interrupted: in place on a terminal, else whenever something changed.

    Who stops answering is waited for: restarts are a reason to watch.
    """
    with _canvas() as draw:

        def show(found: Items | Failed) -> None:
            try:
                if isinstance(found, Failed):
                    raise found
                items = choose(kind, name, found)
                namespaces = source.several_namespaces
                draw(rendered(kind, items, view.output, single=name is not None, namespaces=namespaces))
            except Failed as error:
                draw(f"{error}; asking again")

        source.follow(kind.plural, show)


@contextmanager
def _canvas() -> Iterator[Callable[[Text | str], None]]:
    console = data()
    if not console.is_terminal:
        shown: list[str] = []

        def append(content: Text | str) -> None:
            if shown != [str(content)]:
                shown[:] = [str(content)]
                console.print(content, soft_wrap=True)

        yield append
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def redraw(content: Text | str) -> None:
            text = Text(content) if isinstance(content, str) else content
            text.no_wrap, text.overflow = (
                True,
                "ellipsis",
            )  # a narrow terminal cuts lines, else rows would shift
            live.update(text, refresh=True)

        yield redraw


def reasons(given: Sequence[Reason]) -> Text:
    """Lay out a decision's reasons as sentences, the ruling one first."""
    lines = [f"  - {reason.text}" for reason in given] or ["  none"]
    return Text("\n".join(["Reasons:", *lines]))


def indented(text: Text) -> Text:
    """Move every line to the right, as what belongs to a heading."""
    return Text("\n").join([Text("  ").append_text(line) for line in text.split("\n")])
