import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from scaler.signals.engine_page import (
    DIALECTS,
    Dialect,
    EnginePage,
    PageUnreadable,
    find_dialect,
    later_than,
    read_page,
)

PAGES = Path(__file__).parents[3] / "data" / "engine-pages"
FILES = sorted(path.name for path in PAGES.glob("*.txt"))
RANKS = {"tp_rank", "pp_rank", "moe_ep_rank"}
VLLM = DIALECTS[0]


def page_of(name: str) -> bytes:
    return (PAGES / name).read_bytes()


# ------------------------------------------------------------------ the same by prometheus-client's parsers


def samples_of(page: bytes) -> list[Sample]:
    text = page.decode()
    families = parse_openmetrics(text) if text.endswith("# EOF\n") else parse_text(text)
    return [sample for family in families for sample in family.samples]


def is_count(value: float) -> bool:
    return 0 <= value <= 2**53


def requests(samples: Iterable[Sample], names: tuple[bytes, ...]) -> float | None:
    for name in names:
        found = [sample for sample in samples if sample.name == name.decode()]
        if not found:
            continue
        if not all(is_count(sample.value) for sample in found):
            raise PageUnreadable
        totals = 0.0
        whose = {
            frozenset((k, v) for k, v in sample.labels.items() if k not in RANKS | {"priority"})
            for sample in found
        }
        for labels in whose:
            same = [sample for sample in found if labels <= sample.labels.items()]
            same = [s for s in same if set(s.labels) - {k for k, _ in labels} <= RANKS | {"priority"}]
            largest: dict[str, float] = {}
            for sample in same:
                priority = sample.labels.get("priority", "")
                largest[priority] = max(sample.value, largest.get(priority, 0.0))
            totals += largest[""] if "" in largest else sum(largest.values())
        return totals
    return None


def largest(samples: Iterable[Sample], names: tuple[bytes, ...]) -> float | None:
    for name in names:
        values = [sample.value for sample in samples if sample.name == name.decode()]
        if values:
            return max(values) if all(0 <= value < math.inf for value in values) else None
    return None


def buckets(samples: Iterable[Sample], name: bytes) -> dict[float, float] | None:
    found = [sample for sample in samples if name and sample.name == f"{name.decode()}_bucket"]
    if any("le" not in s.labels or not is_count(s.value) or s.labels["le"] == "NaN" for s in found):
        return None
    summed: dict[float, float] = {}
    for sample in found:
        summed[float(sample.labels["le"])] = summed.get(float(sample.labels["le"]), 0.0) + sample.value
    return summed if math.inf in summed else None


def expected(page: bytes, dialect: Dialect) -> EnginePage:
    samples = samples_of(page)
    running, waiting = requests(samples, dialect.running), requests(samples, dialect.waiting)
    also = requests(samples, dialect.also_waiting) or 0.0
    if running is None or (waiting is None and not dialect.running_holds_waiting):
        raise PageUnreadable
    waiting = (waiting or 0.0) + also
    if dialect.running_holds_waiting:
        waiting = min(waiting, running)
        running -= waiting
    return EnginePage(
        dialect=dialect,
        running=running,
        waiting=waiting,
        kv_usage=largest(samples, dialect.kv_usage),
        first_tokens=buckets(samples, dialect.first_tokens),
        started=largest(samples, (b"process_start_time_seconds",)),
    )


@pytest.mark.parametrize("name", FILES)
def test_every_page_reads_as_prometheus_clients_parser_reads_it(name: str) -> None:
    page = page_of(name)
    read = read_page(page)
    assert read == expected(page, read.dialect)


# ------------------------------------------------------------------ what the pages say


@pytest.mark.parametrize(
    ("name", "dialect", "running", "waiting", "kv_usage"),
    [
        ("vllm-0.32-under-load.txt", "vLLM (vllm:)", 2, 4, 0.0002441704309608106),
        ("vllm-0.32-paused.txt", "vLLM (vllm:)", 0, 0, 0),
        ("vllm-0.8-old-names.txt", "vLLM (vllm:)", 3, 1, 0.07),
        ("vllm-waiting-by-reason-only.txt", "vLLM (vllm_)", 8, 6, None),
        ("reference-engine-under-load.txt", "vLLM (vllm:)", 2, 1, pytest.approx(0.07, abs=0.07)),
        ("openmetrics.txt", "vLLM (vllm:)", 6, 2, 0.125),
        ("odd-but-legal.txt", "vLLM (vllm:)", 5, 5, None),
        ("sglang.txt", "SGLang (sglang:)", 12, 7, 0.28),
        ("sglang-underscores.txt", "SGLang (sglang_)", 12, 7, 0.28),
        ("sglang-priorities-on-all-ranks.txt", "SGLang (sglang:)", 11, 2, 0.4),
        ("tgi-3.txt", "TGI (tgi_)", 17, 3, None),
        ("trtllm-serve.txt", "TensorRT-LLM (trtllm_)", 21, 6, 0.62),
        ("dynamo-frontend.txt", "Dynamo frontend (dynamo_frontend_)", 3, 7, None),
        ("dynamo-frontend-new-names.txt", "Dynamo frontend (dynamo_frontend_)", 10, 0, None),
        ("dynamo-vllm-worker.txt", "vLLM (vllm:)", 8, 1, 0.44),
    ],
)
def test_each_engine_tells_its_requests(
    name: str, dialect: str, running: float, waiting: float, kv_usage: float | None
) -> None:
    page = read_page(page_of(name))
    assert (page.dialect.name, page.running, page.waiting) == (dialect, running, waiting)
    assert page.requests == running + waiting
    assert page.kv_usage == kv_usage


def test_every_file_is_held_to_its_numbers_above() -> None:
    (mark,) = (m for m in test_each_engine_tells_its_requests.pytestmark if m.name == "parametrize")
    assert sorted(case[0] for case in mark.args[1]) == FILES


@pytest.mark.parametrize(
    ("name", "objective", "told"),
    [
        pytest.param("vllm-0.32-paused.txt", 1.0, (1.0, 4.0, 9.0), id="an edge"),
        pytest.param("vllm-0.32-paused.txt", 2.0, (2.5, 0.0, 9.0), id="between edges the upper one"),
        pytest.param("vllm-0.32-paused.txt", 3000.0, None, id="above the last edge nobody knows"),
        pytest.param("dynamo-vllm-worker.txt", 0.02, (0.02, 64.0, 80.0), id="ranks added"),
        pytest.param("openmetrics.txt", 0.5, (0.5, 4.0, 8.0), id="beside exemplars"),
    ],
)
def test_late_first_tokens_are_those_above_a_bucket_edge(
    name: str, objective: float, told: tuple[float, float, float] | None
) -> None:
    first_tokens = read_page(page_of(name)).first_tokens
    assert first_tokens is not None
    assert later_than(first_tokens, objective) == told


def test_buckets_that_are_not_cumulative_tell_no_late_first_tokens() -> None:
    assert later_than({1.0: 9.0, math.inf: 8.0}, 1.0) is None


@pytest.mark.parametrize("name", ["tgi-3.txt", "odd-but-legal.txt"])
def test_an_engine_without_a_histogram_tells_none(name: str) -> None:
    assert read_page(page_of(name)).first_tokens is None


# ------------------------------------------------------------------ what is refused


RUNNING = b'vllm:num_requests_running{engine="0"} 3\n'
WAITING = b"vllm:num_requests_waiting 1\n"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        pytest.param(b"", "its 0 bytes hold no running requests under any known name", id="empty"),
        pytest.param(b"<html>502</html>", "no running requests under any known name", id="HTML"),
        pytest.param(b"# HELP vllm:num_requests_running x\n", "any known name", id="only its help"),
        pytest.param(RUNNING, "it has no vllm:num_requests_waiting", id="half"),
        pytest.param(RUNNING + b"vllm:num_requests_waiting NaN\n", "waiting is nan", id="NaN is no load"),
        pytest.param(b"vllm:num_requests_running -1\n" + WAITING, "running is -1", id="negative"),
        pytest.param(b"vllm:num_requests_running +Inf\n" + WAITING, "running is inf", id="infinite"),
        pytest.param(b"vllm:num_requests_running 1e300\n" + WAITING, "running is 1e+300", id="no count"),
        pytest.param(b"vllm:num_requests_running 1_0\n" + WAITING, "no number: ' 1_0'", id="Python's number"),
        pytest.param(b"vllm:num_requests_running \n" + WAITING, "no number: ' '", id="no value"),
        pytest.param(
            b'vllm:num_requests_running{a="\\"} 3\n' + WAITING, "labels that don't end", id="a torn label"
        ),
        pytest.param(
            b'vllm:num_requests_running{a="b" 3\n' + WAITING, "labels that don't end", id="no brace"
        ),
        pytest.param(b"vllm:num_requests_running{a=} 3\n" + WAITING, "without a value", id="no label value"),
    ],
)
def test_a_page_without_believable_numbers_is_refused_and_never_zero(page: bytes, message: str) -> None:
    with pytest.raises(PageUnreadable, match=message.replace("+", r"\+")):
        read_page(page)


def test_a_known_engine_that_no_longer_tells_is_refused_though_another_dialect_fits() -> None:
    with pytest.raises(PageUnreadable, match="it has no vllm:num_requests_running"):
        read_page(page_of("sglang.txt"), VLLM)


@pytest.mark.parametrize("page", [RUNNING + WAITING.rstrip(), (RUNNING + WAITING).replace(b"\n", b"\r\n")])
def test_other_ends_of_lines_are_read(page: bytes) -> None:
    assert read_page(page).requests == 4


# ------------------------------------------------------------------ generated pages

PLAIN = st.text(
    st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"], blacklist_characters="\x85"), max_size=12
)
TRICKY = st.lists(
    st.sampled_from(['"', "\\", "\n", "}", "{", ",", "=", " ", "# {", " 5", "a", "le"]), max_size=6
)
VALUES = st.one_of(PLAIN, TRICKY.map("".join))
LABELS = st.dictionaries(
    st.sampled_from(["engine", "model_name", "dp_rank", "tp_rank", "priority", "a", "leq"]),
    VALUES,
    max_size=4,
)
COUNTS = st.integers(0, 500).map(float)
NUMBERS = st.one_of(COUNTS, COUNTS, COUNTS, st.floats(0, 1e6), st.sampled_from([math.nan, math.inf, -1.0]))


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@st.composite
def lines(draw: st.DrawFn, dialect: Dialect, numbers: st.SearchStrategy[float]) -> str:
    wanted = st.sampled_from(dialect.names).map(bytes.decode)
    name = draw(st.one_of(wanted, wanted, wanted.map(lambda name: f"{name}_more"), st.just("other")))
    labels = dict(draw(LABELS))
    if name.endswith("_bucket"):
        labels["le"] = draw(st.sampled_from(["0.5", "1.0", "1", "2.5", "+Inf", "+Inf"]))
    order = draw(st.permutations(sorted(labels.items())))
    written = ",".join(f'{key}="{escaped(value)}"' for key, value in order)
    block = f"{{{written}}}" if order or draw(st.booleans()) else ""
    number = draw(numbers)
    value = "NaN" if math.isnan(number) else {math.inf: "+Inf"}.get(number, repr(number))
    return f"{name}{block}{draw(st.sampled_from([' ', ' ', '  ']))}{value}{draw(st.sampled_from(['', '', ' 1796002942710', ' ']))}"


@st.composite
def pages(draw: st.DrawFn) -> tuple[Dialect, bytes]:
    dialect = draw(st.sampled_from(DIALECTS))
    numbers = draw(st.sampled_from([COUNTS, NUMBERS]))
    told = draw(
        st.lists(st.one_of(lines(dialect, numbers), st.sampled_from(["", "# a comment"])), max_size=12)
    )
    return dialect, ("\n".join(told) + draw(st.sampled_from(["", "\n"]))).encode()


@settings(max_examples=100, deadline=None)
@given(pages())
def test_any_page_reads_as_prometheus_clients_parser_reads_it(given_page: tuple[Dialect, bytes]) -> None:
    dialect, page = given_page
    try:
        wanted: EnginePage | None = expected(page, dialect)
    except PageUnreadable:
        wanted = None
    try:
        read: EnginePage | None = read_page(page, dialect)
    except PageUnreadable:
        read = None
    assert read == wanted


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2000))
def test_any_bytes_are_read_or_refused(noise: bytes, place: int) -> None:
    page = page_of("sglang.txt")[:2000]
    spoilt = page[:place] + noise + page[place + len(noise) :]
    try:
        read = read_page(spoilt)
    except PageUnreadable:
        return
    assert is_count(read.running)
    assert is_count(read.waiting)


def test_a_dialect_is_found_by_its_running_requests_alone() -> None:
    assert find_dialect(b"tgi_batch_current_size 4\n") is not None
    assert find_dialect(b"tgi_queue_size 4\nvllm:num_requests_running_total 4\n") is None
