"""A document of `loader.bench.gpu`, as figures beside their limits, their peers and what the project promises. PURE.

`python -m loader.bench.report FILE` shows one that was written before, also one that was cut off.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

from loader.bench import names
from loader.bench.figures import Figure, figure_of

_DIGEST_BYTES = 17e9
_GIGABYTE = 1e9
_SIBLING_RATE = 350.0
_HUGE_PAGES_RATE = 44.0
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison.

    Attributes:
        what: what is compared.
        found: our figure, with its unit.
        against: what it is held against, and that one's figure.
        ratio: of the two; more is better.
        target: what the ratio must come to.
    """

    what: str
    found: str
    against: str
    ratio: float
    target: float

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.ratio >= self.target


def figures(document: Document, part: str) -> dict[str, Figure]:
    """What was measured in a part, by name of the way."""
    found = {name: figure_of(each) for name, each in _runs(document, part).items() if "load" in each[0]}
    if document.get("device", {}).get("name") != "cpu":
        return found
    # A mapped file costs nothing until it is touched, so what counts on a CPU is when every byte was used.
    return {name: replace(figure, load=figure.used) for name, figure in found.items()}


def disagreeing(document: Document, part: str) -> list[str]:
    """Ways whose tensors don't come to the sum that most ways' come to: their figures are of something else."""
    sums = {name: each[0]["sum"] for name, each in _runs(document, part).items() if "sum" in each[0]}
    counts = Counter(sums.values()).most_common(1)
    return [name for name, total in sums.items() if total != counts[0][0]]


def _runs(document: Document, part: str) -> Mapping[str, Sequence[Any]]:
    return cast("Mapping[str, Sequence[Any]]", document.get("parts", {}).get(part, {}).get("runs", {}))


def rows(document: Document) -> list[Row]:
    """All comparisons for which there are figures."""
    found: list[Row] = []
    for part in ("tmpfs", "pagecache", "cold"):
        found += _against_limits(part, figures(document, part))
        found += _against_peers(part, figures(document, part))
    dense = figures(document, "tmpfs")
    for part in ("experts", "one"):
        found += _against_dense(part, figures(document, part), dense)
        found += _opened_against_dense(document, part)
    huge = _rates(figures(document, "hugepages"), (names.INTO, names.LOAD_FILE))
    found += [_at_least(f"hugepages: {name}", rate, _HUGE_PAGES_RATE) for name, rate in huge.items()]
    return [*found, *_inside(document)]


def _rates(of: Mapping[str, Figure], chosen: Sequence[str]) -> dict[str, float]:
    return {name: of[name].rate for name in chosen if name in of}


def _best(rates: Mapping[str, float]) -> tuple[str, float] | None:
    return max(rates.items(), key=lambda item: item[1], default=None)


def _against_limits(part: str, of: Mapping[str, Figure]) -> Iterator[Row]:
    is_read = names.is_direct_read if part == "cold" else names.is_read
    bounds = [_best(_rates(of, [name for name in of if is_read(name)])), _best(_rates(of, [names.COPY]))]
    slower = min((bound for bound in bounds if bound), key=lambda bound: bound[1], default=None)
    if slower is None:
        return
    for name, rate in _rates(of, (names.INTO, names.LOAD_FILE)).items():
        yield _row(f"{part}: {name}", rate, slower, 0.95)


def _against_peers(part: str, of: Mapping[str, Figure]) -> Iterator[Row]:
    best = _best({name: figure.rate for name, figure in of.items() if names.is_peer(name)})
    if best is None:
        return
    for name, rate in _rates(of, (names.LOAD_FILE, names.INTO)).items():
        yield _row(f"{part}: {name}", rate, best, 1.0)


def _against_dense(part: str, of: Mapping[str, Figure], dense: Mapping[str, Figure]) -> Iterator[Row]:
    for name in (names.INTO, names.LOAD_FILE):
        if name in of and name in dense:
            yield _row(f"{part}: {name}", of[name].rate, (f"{name}, dense", dense[name].rate), 0.9)


def _opened_against_dense(document: Document, part: str) -> Iterator[Row]:
    """Without the time that opening takes: an engine has opened its checkpoint when it loads."""
    rates = {}
    for name in (part, "tmpfs"):
        runs = [run for run in _runs(document, name).get(names.INTO, ()) if "openedSeconds" in run]
        if not runs:
            return
        rates[name] = runs[0]["bytes"] / median(run["openedSeconds"] for run in runs) / _GIGABYTE
    yield _row(
        f"{part}: {names.INTO}, once opened",
        rates[part],
        (f"{names.INTO}, dense, once opened", rates["tmpfs"]),
        0.9,
    )


def _row(what: str, rate: float, against: tuple[str, float], target: float) -> Row:
    name, other = against
    return Row(
        what=what,
        found=f"{rate:.1f} GB/s",
        against=f"{name}: {other:.1f} GB/s",
        ratio=rate / other,
        target=target,
    )


def _inside(document: Document) -> Iterator[Row]:
    runs = _runs(document, "process")
    if "start-up" in runs:
        seconds = max(1e-6, runs["start-up"][0]["startUpSeconds"])
        yield _at_most("a first load's start-up", seconds, "s", 0.1)
    if "page-locking" in runs:
        yield _at_most("page-locking alone, on one thread", runs["page-locking"][0]["lockSeconds"], "s", 0.1)
    if "sibling" in runs:
        yield _beside(runs["sibling"][0])
    if "digests" in runs:
        about = runs["digests"][0]
        yield _at_most(
            "digest, as if of 17 GB",
            1000 * about["digestSeconds"] * _DIGEST_BYTES / about["bytes"],
            "ms",
            30,
        )
        extra = about["extraDeviceBytes"]
        yield Row(
            what="device memory beside the tensors",
            found=f"{extra} bytes",
            against="at most: 0 bytes",
            ratio=1.0 if extra <= 0 else 0.0,
            target=1.0,
        )


def _beside(about: Mapping[str, Any]) -> Row:
    """A copy from a neighbour over a direct link; on one device there is no promise, and the figure is shown for itself."""
    rate = about["gigabytesPerSecond"]
    promised = _SIBLING_RATE if about["link"] == "PEER" else rate
    return Row(
        what=f"sibling, link {about['link']}",
        found=f"{rate:.0f} GB/s",
        against=f"at least: {promised:.0f} GB/s",
        ratio=rate / promised,
        target=1.0,
    )


def _at_least(what: str, rate: float, promised: float) -> Row:
    return Row(
        what=what,
        found=f"{rate:.1f} GB/s",
        against=f"at least: {promised:g} GB/s",
        ratio=rate / promised,
        target=1.0,
    )


def _at_most(what: str, found: float, unit: str, bound: float) -> Row:
    return Row(
        what=what,
        found=f"{found:.3f} {unit}",
        against=f"at most: {bound:g} {unit}",
        ratio=bound / found,
        target=1.0,
    )


def render(document: Document) -> str:
    """The document as text: every figure, then the comparisons, then what is missing."""
    lines = [f"{document.get('device', {}).get('name', '')}, torch {document.get('torch')}", ""]
    for part, about in document.get("parts", {}).items():
        lines += [
            *_part(part, about, figures(document, part)),
            *(f"other bytes: {name}" for name in disagreeing(document, part)),
            "",
        ]
    table = [("COMPARISON", "FOUND", "AGAINST", "RATIO", "TARGET", "")]
    table += [
        (
            row.what,
            row.found,
            row.against,
            f"{row.ratio:.3f}",
            f"{row.target:g}",
            "holds" if row.holds else "MISSED",
        )
        for row in rows(document)
    ]
    return "\n".join([*lines, *_aligned(table)])


def _part(part: str, about: Mapping[str, Any], of: Mapping[str, Figure]) -> Iterator[str]:
    table = [(part.upper(), "GB/s", "LOADED s", "USED s", "ROUNDS")]
    for name, figure in of.items():
        count = len(about["runs"][name])
        table.append((name, f"{figure.rate:.2f}", f"{figure.load:.3f}", f"{figure.used:.3f}", f"{count}"))
    yield from _aligned(table)
    for kind in ("failed", "leftOut"):
        for name, why in about.get(kind, {}).items():
            yield f"{kind}: {name}: {why}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


if __name__ == "__main__":
    print(render(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))  # noqa: T201 - the program's answer
