"""`get` and `describe`: what a kind of object looks like, and how it is printed once or over and over."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.live import Live
from rich.text import Text

from scaler.cli.answers import Reason, parse
from scaler.cli.client import Controller
from scaler.cli.failures import OK, Failed
from scaler.cli.options import Output
from scaler.cli.output import as_json, as_yaml, data, emit, note, table

_REFRESH_SECONDS = 1.0
"""How often `--watch` asks; the controller decides more often, but nobody reads faster."""

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
    """

    noun: str
    plural: str
    read: Callable[[Item], Parsed]
    columns: Sequence[Column[Any]]
    source: str = "the controller's answer"
    owner: str = ""
    rows: Callable[[Parsed], Sequence[Any]] = lambda item: (item,)

    def table(self, items: Sequence[Item], now: float, *, wide: bool) -> Text:
        """Lay out objects as a table."""
        columns = [column for column in self.columns if wide or not column.wide]
        rows = [row for item in items for row in self.rows(parse(self.read, item, self.source))]
        cells = [[column.cell(row, now) for column in columns] for row in rows]
        return table([column.header for column in columns], cells)

    def name_of(self, item: Item) -> str:
        """Return an object's name, behind its owner's if it has one."""
        name = f"{item.get('name')}"
        return f"{item.get(self.owner)}/{name}" if self.owner else name


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """From where, and how to print.

    Attributes:
        server: the controller's URL.
        output: the format.
        watch: whether to go on.
    """

    server: str
    output: Output
    watch: bool = False


def get(kind: Kind[Any], name: str | None, view: View) -> int:
    """Print one object or all of a kind.

    Raises:
        Failed: nobody answers, or there is no object of that name.
    """
    controller = Controller(view.server)
    items = choose(kind, name, controller.items(kind.plural))
    if view.watch:
        _watch(kind, name, controller, view.output)
    elif not items and view.output in {Output.TABLE, Output.WIDE}:
        note(f"No {kind.plural} found.")
    else:
        emit(rendered(kind, items, view.output, single=name is not None))
    return OK


def describe(kind: Kind[Any], name: str, server: str) -> tuple[Any, Controller]:
    """Fetch one object for a description, and the controller for what belongs to it.

    Raises:
        Failed: nobody answers, or there is no object of that name.
    """
    controller = Controller(server)
    (item,) = choose(kind, name, controller.items(kind.plural))
    return parse(kind.read, item), controller


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
        hint = f"there are: {known}" if known else f"the controller has no {kind.plural}"
        of = f"{kind.noun} of {kind.owner}" if kind.owner else kind.noun
        raise Failed(f"there is no {of} {name}", hint=hint)
    return chosen


def rendered(kind: Kind[Any], items: Sequence[Item], output: Output, *, single: bool) -> Text | str:
    """Render objects in one of the formats of `-o`; a single one by itself, several as `items`."""
    whole: object = items[0] if single and items and not kind.owner else {"items": list(items)}
    match output:
        case Output.JSON:
            return as_json(whole)
        case Output.YAML:
            return as_yaml(whole)
        case Output.NAME:
            return "\n".join(f"{kind.noun}/{kind.name_of(item)}" for item in items)
        case _:
            return kind.table(items, time.time(), wide=output is Output.WIDE)


def _watch(kind: Kind[Any], name: str | None, controller: Controller, output: Output) -> None:
    """Print again and again until interrupted: in place on a terminal, else whenever something changed.

    A controller that stops answering is waited for: restarts are a reason to watch.
    """
    with _canvas() as draw:
        while True:
            try:
                items = choose(kind, name, controller.items(kind.plural))
                draw(rendered(kind, items, output, single=name is not None))
            except Failed as error:
                draw(f"{error}; asking again")
            time.sleep(_REFRESH_SECONDS)


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
