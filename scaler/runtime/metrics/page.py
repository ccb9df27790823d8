"""The page that Prometheus scrapes, written in slices of the event loop, so that no tick and no promotion waits for it.

A controller of 500 policies has tens of thousands of series. The Prometheus client's writer would hold the loop for half
a second and more, and in a thread it would take turns with the loop, 5 ms at a time. So the page is written here, 2 ms
at a time, with a turn of the loop in between. It is always the text format: Prometheus takes it as readily as
OpenMetrics, and it has all that we expose. `scaler.runtime.bench.exposition` measures it.
"""

import asyncio
import time
from collections.abc import Iterable
from itertools import accumulate, islice

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from warmpool.metric_families import (
    Family,
    GroupMetric,
    MeasuredMetric,
    RowMetric,
    combinations,
    edges,
    number,
)

_SLICE_SECONDS = 0.002
"""How long the page may be written before the loop gets a turn."""
_ROWS_AT_ONCE = 128
"""Rows that are written between looks at the clock: about 0.1 ms."""
_GROUPS_AT_ONCE = 32
"""Groups that are written between looks at the clock; the largest has some twenty numbers."""
_COMPRESS_IN_THREAD_BYTES = 32 * 1024
"""Bodies larger than this are compressed in a thread."""


class Page:
    """Writes what a registry holds.

    Args:
        registry: what is shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._written = _Written()

    async def handle(self, _: web.Request) -> web.Response:
        """Answer a scrape."""
        response = web.Response(
            body=await self.render(),
            headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4},
            zlib_executor_size=_COMPRESS_IN_THREAD_BYTES,
        )
        response.enable_compression()
        return response

    async def render(self) -> bytes:
        """Write the page."""
        writer = _Writer(self._written)
        for metric in self._registry.collect():
            match metric:
                case RowMetric():
                    await writer.rows(metric)
                case GroupMetric():
                    await writer.groups(metric)
                case MeasuredMetric():
                    await writer.measured(metric)
                case _:
                    await writer.metric(metric)
        self._written = writer.written
        return writer.text()


class _Escaped(dict[str, str]):
    """Label values as they stand between quotes; most are asked for again and again."""

    def __missing__(self, value: str) -> str:
        escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        self[value] = escaped
        return escaped


class _Numbers(dict[float, str]):
    """Numbers as they are written; most are small counts."""

    def __missing__(self, value: float) -> str:
        text = self[value] = number(value)
        return text


class _Only(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


_Written = dict[tuple[str, tuple[str, ...]], tuple[int, float, bytes]]
"""Children of histograms as they were last written, by family and labels, each with what it had measured
by then: how many, and their sum."""


class _Writer:
    """Writes one page.

    Attributes:
        written: what the next page need not write again.
    """

    def __init__(self, before: _Written) -> None:
        self._before = before
        self.written = _Written()
        self._parts: list[bytes] = []
        self._escaped = _Escaped()
        self._numbers = _Numbers()
        self._turn_began = time.perf_counter()

    def text(self) -> bytes:
        return b"".join(self._parts)

    async def metric(self, metric: Metric) -> None:
        """Write a metric of the Prometheus client; those are small."""
        self._parts.append(generate_latest(_Only(metric)))
        await self._give_way()

    async def rows(self, metric: RowMetric) -> None:
        """Write a gauge or a counter."""
        for _ in metric.work:
            await self._give_way()
        self._head(metric.family)
        names = metric.family.label_names
        labels = "{" + ",".join(f'{name}="%s"' for name in names) + "}" if names else ""
        line, escaped, numbers = f"{metric.family.name}{labels} %s\n", self._escaped, self._numbers
        found = iter(metric.rows)
        while lines := [
            line % (*[escaped[each] for each in values], numbers[value])
            for values, value in islice(found, _ROWS_AT_ONCE)
        ]:
            self._parts.append("".join(lines).encode())
            await self._give_way()

    async def groups(self, metric: GroupMetric) -> None:
        """Write a gauge or a counter, some owners at a time."""
        for _ in metric.work:
            await self._give_way()
        self._head(metric.family)
        block = _group(metric.family, metric.owners)
        names = metric.family.label_names[: metric.owners]
        labels = ",".join(f'{name}="%s"' for name in names)
        escaped, numbers = self._escaped, self._numbers.__getitem__
        found = iter(metric.groups)
        while texts := [
            block.replace(_OWNER, (labels % tuple([escaped[each] for each in owner])).replace("%", "%%"))
            % tuple(map(numbers, values))
            for owner, values in islice(found, _GROUPS_AT_ONCE)
        ]:
            self._parts.append("".join(texts).encode())
            await self._give_way()

    async def measured(self, metric: MeasuredMetric) -> None:
        """Write a histogram, a child at a time: between its buckets and its count nothing may be measured."""
        self._head(metric.family)
        names, block = metric.family.label_names, _block(metric.family)
        labels = ",".join(f'{name}="%s"' for name in names)
        escaped, numbers = self._escaped, self._numbers
        blank = block % (*[0] * (len(metric.family.buckets) + 2), "0.0")
        before, written = self._before, self.written
        for child in metric.children:
            place = (metric.family.name, child.values)
            known = before.get(place)
            if known is None or known[:2] != (child.measured, child.total):
                owner = labels % tuple([escaped[each] for each in child.values])
                counts = [*accumulate(child.counts)]
                if counts[-1]:
                    text = block.replace(_OWNER, owner.replace("%", "%%"))
                    text %= (*counts, counts[-1], numbers[child.total])
                else:
                    text = blank.replace(_OWNER, owner)
                known = (child.measured, child.total, text.encode())
            written[place] = known
            self._parts.append(known[2])
            await self._give_way()

    def _head(self, family: Family) -> None:
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        head = f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n"
        self._parts.append(head.encode())

    async def _give_way(self) -> None:
        if time.perf_counter() - self._turn_began < _SLICE_SECONDS:
            return
        await asyncio.sleep(0)
        self._turn_began = time.perf_counter()


_OWNER = "\0"
"""Stands for an owner's labels in the text of a block; no label holds it."""


def _group(family: Family, owners: int) -> str:
    """Return the text of one owner's numbers, with a place for its labels and one `%` a number."""
    names = family.label_names[owners:]
    return "".join(
        f"{family.name}{{{_OWNER}"
        + "".join(f',{name}="{value}"' for name, value in zip(names, values, strict=True))
        + "} %s\n"
        for values in combinations(family, owners)
    )


def _block(family: Family) -> str:
    """Return the text of one child of a histogram with a labels' place and one `%` a number."""
    buckets = "".join(f'{family.name}_bucket{{{_OWNER},le="{edge}"}} %d.0\n' for edge in edges(family))
    return f"{buckets}{family.name}_count{{{_OWNER}}} %d.0\n{family.name}_sum{{{_OWNER}}} %s\n"
