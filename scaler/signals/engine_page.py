"""An engine's metrics page: whose it is, and the few numbers that are wanted of it. PURE.

A page has some 600 lines and a handful are needed, four times a second, from hundreds of engines. So the page stays bytes,
the lines that begin with a wanted name are found, and only they are parsed: a tenth of a millisecond where parsing all
of it takes sixteen. What is found is what prometheus-client's parsers find; tests hold it to that.

Two kinds of page are read alike: Prometheus' text format 0.0.4 and OpenMetrics 1.0 (exemplars and timestamps are passed
over). A name is looked for at the beginning of a line, where every exporter writes it, unquoted: all wanted names are
legal without quotes.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from scaler.errors import SignalError

STARTED: bytes = b"process_start_time_seconds"
"""Unix time at which the engine's process began, where it tells: another one means that all counters began anew."""

_LARGEST = 2.0**53
"""Numbers above this are no counts: floats are exact to here."""
_BUCKET = b"_bucket"
_EDGE = b"le"
_PRIORITY = b"priority"
_SAME_REQUESTS = frozenset({b"tp_rank", b"pp_rank", b"moe_ep_rank"})
"""Ranks that work on the same requests: of these series the largest counts, not the sum."""
_REMEMBERED_SERIES = 8192

Names = tuple[bytes, ...]
"""Names of one thing; the first that a page has counts."""
Series = tuple[tuple[tuple[bytes, bytes], ...], bytes]
"""Labels that tell requests apart, and the value of `priority`."""


class PageUnreadable(SignalError):
    """No load can be read from the page; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one kind of engine calls what is wanted.

    Attributes:
        name: for people: the engine, and how its names begin.
        running: gauge of the requests that are computed.
        waiting: gauge of those that wait in the engine.
        also_waiting: gauge of those that wait in another queue of the engine; added where it is there.
        running_holds_waiting: `running` counts what waits as well, and `waiting` may be absent.
        kv_usage: gauge of the share of the KV memory that is in use; only shown.
        first_tokens: histogram of seconds to the first token; empty where there is none.
    """

    name: str
    running: Names
    waiting: Names
    also_waiting: Names = ()
    running_holds_waiting: bool = False
    kv_usage: Names = ()
    first_tokens: bytes = b""

    @property
    def names(self) -> Names:
        """All names of samples that are looked for."""
        buckets = (self.first_tokens + _BUCKET,) if self.first_tokens else ()
        return (*self.running, *self.waiting, *self.also_waiting, *self.kv_usage, *buckets, STARTED)


def _vllm(prefix: bytes) -> Dialect:
    """vLLM; the reference engine uses its names.

    `num_requests_waiting_by_reason` repeats `num_requests_waiting` by reason, and is taken only where that is gone.
    `gpu_cache_usage_perc` is what `kv_cache_usage_perc` was called until 0.9.
    """
    return Dialect(
        name=f"vLLM ({prefix.decode()})",
        running=(prefix + b"num_requests_running",),
        waiting=(prefix + b"num_requests_waiting", prefix + b"num_requests_waiting_by_reason"),
        kv_usage=(prefix + b"kv_cache_usage_perc", prefix + b"gpu_cache_usage_perc"),
        first_tokens=prefix + b"time_to_first_token_seconds",
    )


def _sglang(prefix: bytes) -> Dialect:
    """SGLang; requests whose grammar is being compiled wait in a queue of their own."""
    return Dialect(
        name=f"SGLang ({prefix.decode()})",
        running=(prefix + b"num_running_reqs",),
        waiting=(prefix + b"num_queue_reqs",),
        also_waiting=(prefix + b"num_grammar_queue_reqs",),
        kv_usage=(prefix + b"token_usage",),
        first_tokens=prefix + b"time_to_first_token_seconds",
    )


DIALECTS: tuple[Dialect, ...] = (
    _vllm(b"vllm:"),
    _vllm(b"vllm_"),
    _sglang(b"sglang:"),
    _sglang(b"sglang_"),
    Dialect(
        name="TensorRT-LLM (trtllm_)",
        running=(b"trtllm_num_requests_running",),
        waiting=(b"trtllm_num_requests_waiting",),
        kv_usage=(b"trtllm_kv_cache_utilization",),
        first_tokens=b"trtllm_time_to_first_token_seconds",
    ),
    Dialect(
        name="TGI (tgi_)",
        running=(b"tgi_batch_current_size",),
        waiting=(b"tgi_queue_size",),
    ),
    Dialect(
        name="Dynamo frontend (dynamo_frontend_)",
        running=(b"dynamo_frontend_active_requests", b"dynamo_frontend_inflight_requests"),
        waiting=(b"dynamo_frontend_queued_requests",),
        running_holds_waiting=True,
        first_tokens=b"dynamo_frontend_time_to_first_token_seconds",
    ),
)
"""All dialects. A Dynamo worker's page has its engine's own names too, and those come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """What one page says.

    Attributes:
        dialect: whose names it uses.
        running: requests that are computed.
        waiting: requests that wait in the engine.
        kv_usage: share of the KV memory in use, from 0 to 1; None if it isn't told.
        first_tokens: per upper edge in seconds, the first tokens that came no later, since the process began; the last
            edge is infinity. None if it isn't told.
        started: Unix time at which the process began; None if it isn't told.
    """

    dialect: Dialect
    running: float
    waiting: float
    kv_usage: float | None = None
    first_tokens: Mapping[float, float] | None = None
    started: float | None = None

    @property
    def requests(self) -> float:
        """Requests that the engine has."""
        return self.running + self.waiting


def find_dialect(page: bytes) -> Dialect | None:
    """Return the first dialect whose running requests the page tells, or None."""
    for dialect in DIALECTS:
        if any(any(_lines(page, name)) for name in dialect.running):
            return dialect
    return None


def read_page(page: bytes, dialect: Dialect | None = None) -> EnginePage:
    """Read what is wanted.

    Args:
        page: the page as it came.
        dialect: whose names it uses, as an earlier page of the engine showed; None: find out.

    Raises:
        PageUnreadable: running or waiting requests aren't there, or are no numbers from 0 up. Whatever else is missing
            or no number is None.
    """
    dialect = dialect if dialect is not None else find_dialect(page)
    if dialect is None:
        known = ", ".join(name.name for name in DIALECTS)
        raise PageUnreadable(f"its {len(page)} bytes hold no running requests under any known name ({known})")
    running = _required(page, dialect.running)
    if dialect.running_holds_waiting:
        waiting = min(_requests(page, dialect.waiting) or 0.0, running)
        running -= waiting
    else:
        waiting = _required(page, dialect.waiting) + (_requests(page, dialect.also_waiting) or 0.0)
    return EnginePage(
        dialect=dialect,
        running=running,
        waiting=waiting,
        kv_usage=_largest(page, dialect.kv_usage),
        first_tokens=_first_tokens(page, dialect.first_tokens),
        started=_largest(page, (STARTED,)),
    )


def later_than(first_tokens: Mapping[float, float], objective: float) -> tuple[float, float, float] | None:
    """Return (edge, late, all): the first tokens later than the edge, and all of them.

    The edge is the smallest that is no less than the objective: of a request in the objective's own bucket nobody knows
    on which side it was, so only what was certainly late counts. Put objectives on edges (vLLM and TensorRT-LLM have none
    between 1 and 2.5, and between 2.5 and 5 seconds).

    Args:
        first_tokens: see `EnginePage`.
        objective: seconds.

    Returns:
        None if no finite edge lies that high, or the buckets aren't cumulative.
    """
    every = first_tokens.get(math.inf)
    edge = min((edge for edge in first_tokens if objective <= edge < math.inf), default=None)
    if every is None or edge is None or not first_tokens[edge] <= every:
        return None
    return edge, every - first_tokens[edge], every


# ------------------------------------------------------------------ values


def _required(page: bytes, names: Names) -> float:
    value = _requests(page, names)
    if value is None:
        raise PageUnreadable(f"it has no {names[0].decode()}")
    return value


def _requests(page: bytes, names: Names) -> float | None:
    """Add up requests over the series of the first name that is there; None if none is.

    Series that differ in what tells requests apart (data-parallel ranks, models) are added. Ranks that work on the same
    requests each tell all of them: the largest counts. A scheduler with priorities tells its total under the empty
    priority and the parts beside it: the total counts, and the parts only where there is none.
    """
    for name in names:
        parts: dict[tuple[tuple[bytes, bytes], ...], dict[bytes, float]] = {}
        for line in _lines(page, name):
            labels, value = _split(line)
            if not 0 <= value <= _LARGEST:  # false for NaN
                raise PageUnreadable(f"{name.decode()} is {value:g}")
            rest, priority = _series(labels)
            of = parts.setdefault(rest, {})
            of[priority] = max(value, of.get(priority, 0.0))
        if parts:
            return sum(of.get(b"", sum(of.values())) for of in parts.values())
    return None


def _largest(page: bytes, names: Names) -> float | None:
    """Return the largest value of the first name that is there; None if that is no number from 0 up."""
    for name in names:
        values = [_split(line)[1] for line in _lines(page, name)]
        if values:
            return max(values) if all(0 <= value < math.inf for value in values) else None
    return None


def _first_tokens(page: bytes, name: bytes) -> Mapping[float, float] | None:
    """Return the histogram, added up over its series; None if it isn't there or has something that is no count."""
    if not name:
        return None
    buckets: dict[float, float] = {}
    for line in _lines(page, name + _BUCKET):
        labels, value = _split(line)
        edge = _edge(labels)
        if edge is None or not 0 <= value <= _LARGEST:
            return None
        buckets[edge] = buckets.get(edge, 0.0) + value
    return buckets if math.inf in buckets else None


# ------------------------------------------------------------------ lines


def _lines(page: bytes, name: bytes) -> Iterator[bytes]:
    """Yield the rest of each line whose sample has exactly this name."""
    needle = b"\n" + name
    begin = 0 if page.startswith(name) else page.find(needle) + 1 or -1
    while begin >= 0:
        after = begin + len(name)
        end = page.find(b"\n", after)
        if end < 0:
            end = len(page)
        if page[after : after + 1] in {b"{", b" ", b"\t"}:
            yield page[after:end]
        begin = page.find(needle, end) + 1 or -1


def _split(line: bytes) -> tuple[bytes, float]:
    """Return the labels, braces included, and the value of what follows a sample's name.

    Raises:
        PageUnreadable: it is no sample.
    """
    labels, _, last = line.rpartition(b" ")
    if labels.endswith(b"}") and b"#" not in labels:  # the usual line; `#` may begin an exemplar
        value = _number(last)
        if value is not None:
            return labels, value
    end = _end_of_labels(line)
    words = line[end:].split(None, 1)
    value = _number(words[0]) if words else None
    if value is None:
        raise PageUnreadable(f"it has a value that is no number: {_shown(line)}")
    return line[:end].strip(), value


def _number(word: bytes) -> float | None:
    if b"_" in word:  # Python's numbers may have them, Prometheus' may not
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _end_of_labels(line: bytes) -> int:
    """Return the place behind the labels, 0 if there are none."""
    begin = len(line) - len(line.lstrip())
    if line[begin : begin + 1] != b"{":
        return 0
    at = begin + 1
    while True:
        brace, quote = line.find(b"}", at), line.find(b'"', at)
        if brace < 0:
            raise PageUnreadable(f"it has labels that don't end: {_shown(line)}")
        if not 0 <= quote < brace:
            return brace + 1
        at = _end_of_value(line, quote) + 1


def _end_of_value(labels: bytes, quote: int) -> int:
    """Return the place of the quote that closes the value which begins at `quote`."""
    at = quote + 1
    while True:
        end = labels.find(b'"', at)
        if end < 0:
            raise PageUnreadable(f"it has labels that don't end: {_shown(labels)}")
        before = labels[quote + 1 : end]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return end
        at = end + 1


def _labels(labels: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and values, the values as they are written."""
    at = 1
    while (equals := labels.find(b"=", at)) >= 0:
        quote = labels.find(b'"', equals)
        if quote < 0:
            raise PageUnreadable(f"it has a label without a value: {_shown(labels)}")
        end = _end_of_value(labels, quote)
        yield labels[at:equals].strip(b" \t,"), labels[quote + 1 : end]
        at = end + 1


@lru_cache(_REMEMBERED_SERIES)
def _series(labels: bytes) -> Series:
    """Return what tells requests apart, and the priority. Engines of one model all have the same few labels."""
    found = dict(_labels(labels)) if labels else {}
    priority = found.pop(_PRIORITY, b"")
    return tuple(sorted(item for item in found.items() if item[0] not in _SAME_REQUESTS)), priority


@lru_cache(_REMEMBERED_SERIES)
def _edge(labels: bytes) -> float | None:
    """Return the upper edge of a bucket; None if there is none."""
    try:
        edge = float(dict(_labels(labels))[_EDGE])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(edge) else edge


def _shown(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))
