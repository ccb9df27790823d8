"""What keeps an engine from loading its weights, and what doesn't; what the memory test finds, and how much it has seen."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.unit.warmpool.nodehealth.preflight_memory import (
    BASE,
    HostMemory,
    areas,
    holds_what_was_written,
    passes_a_march,
    some_patterns,
)
from tests.unit.warmpool.nodehealth.ptx import Kernel
from warmpool.nodehealth.preflight.command import SWITCH, pack
from warmpool.nodehealth.preflight.findings import REFUSED, STARTS, Counters, Finding, Outcome, told_in
from warmpool.nodehealth.preflight.kernel import NAME, PTX
from warmpool.nodehealth.preflight.look import (
    ALONE_BYTES,
    CONTEXT_BYTES,
    RESERVE_BYTES,
    Limits,
    Time,
    look,
)
from warmpool.nodehealth.preflight.march import Area, Coverage, Wrong, march
from warmpool.nodehealth.preflight.patterns import ALL_BITS, OF_ADDRESSES, Pattern, pairs
from warmpool.nodehealth.preflight.ports import DriverFailed, Untestable

GIB = 2**30
GPU = "GPU-a"


class Clock:
    """Each look at it takes a moment."""

    def __init__(self, step: float = 0.0) -> None:
        self.at = 100.0
        self._step = step

    def now(self) -> float:
        self.at += self._step
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


# ---------------------------------------------------------------------- patterns


def test_all_pairs_are_complements_and_each_bit_walks_through_each_word() -> None:
    found = list(pairs())
    assert [pattern.turn for pattern, _ in found[:6]] == [OF_ADDRESSES, 0, 32, 16, 48, 8]
    assert len(found) == 65
    for pattern, complement in found:
        assert pattern.word(BASE + 8) ^ complement.word(BASE + 8) == ALL_BITS
    assert {pattern.word(BASE) for pattern, _ in found[1:]} == {1 << place for place in range(64)}


def test_words_of_addresses_are_all_different_and_walking_bits_differ_from_their_neighbours() -> None:
    assert Pattern(OF_ADDRESSES).word(BASE + 8) == BASE + 8
    words = [Pattern(3).word(BASE + 8 * number) for number in range(64)]
    assert len(set(words)) == 64


# ---------------------------------------------------------------------- the march


def test_memory_holds_what_was_written() -> None:
    holds_what_was_written(HostMemory(areas(5, 64, 1)), GIB)
    passes_a_march(HostMemory(areas(5, 64)), GIB)


@pytest.mark.parametrize("bit", [0, 17, 63])
@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("word", [0, 9, 10, 14])
def test_a_stuck_bit_is_found_by_the_first_pair(bit: int, value: int, word: int) -> None:
    taken = areas(10, 5)
    address = [each.address + 8 * number for each in taken for number in range(each.nbytes // 8)][word]
    mask = 1 << bit
    memory = HostMemory(taken, stuck={address: (mask, 0) if value else (0, mask)})
    coverage = march(memory, GIB, 10.0, Clock().now)
    assert coverage.wrong == Wrong(words=1, first=address, bits=mask)
    assert coverage.patterns == 0
    assert memory.given == 1


def test_words_that_land_elsewhere_are_found() -> None:
    (area,) = areas(16)
    memory = HostMemory([area], lands={area.address + 8: area.address + 64})
    wrong = march(memory, GIB, 10.0, Clock().now).wrong
    assert wrong is not None
    assert wrong.first == area.address + 8


@pytest.mark.parametrize(
    ("sweeps", "covered", "patterns"),
    [(0, 0, 0), (1, 0, 0), (4, 0, 0), (5, 80, 0), (6, 160, 1), (10, 160, 2)],
)
def test_a_march_ends_in_time_and_says_how_far_it_came(sweeps: int, covered: int, patterns: int) -> None:
    memory = HostMemory(areas(10, 10))
    coverage = march(memory, GIB, sweeps + 0.5, Clock(step=1.0).now)
    assert (memory.sweeps, coverage.covered_bytes, coverage.patterns) == (sweeps, covered, patterns)
    assert (coverage.taken_bytes, coverage.wrong, memory.given) == (160, None, 1)


def test_without_an_end_all_patterns_are_read() -> None:
    memory = HostMemory(areas(2))
    coverage = march(memory, GIB, 10.0, Clock().now)
    assert (coverage.patterns, memory.sweeps) == (65, 131)


def test_no_more_is_taken_than_it_may_be() -> None:
    assert march(HostMemory(areas(10, 10)), 100, 10.0, Clock().now).taken_bytes == 80
    assert march(HostMemory([]), 100, 10.0, Clock().now) == Coverage(0, 0, 0, 0.0)


# ---------------------------------------------------------------------- the kernel's text


@pytest.mark.parametrize("pattern", [*some_patterns(), Pattern(63), Pattern(7, ALL_BITS)])
@pytest.mark.parametrize("words", [1, 12, 37])
def test_the_kernel_writes_and_finds_what_the_pattern_says(pattern: Pattern, words: int) -> None:
    """What the assembly's text does is the same as what the march's host memory does, thread by thread."""
    (area,) = areas(words)
    result = 0x1000
    memory = {result: 0, result + 8: ALL_BITS, result + 16: 0}
    kernel = Kernel(PTX.decode().rstrip("\0"), memory)
    host = HostMemory([area])

    def sweep(expected: Pattern | None, written: Pattern | None) -> Wrong | None:
        reads, writes = expected or Pattern(0), written or Pattern(0)
        kernel.launch(
            *(2, 3, area.address, area.nbytes // 8, result),
            *(int(expected is not None), reads.turn, reads.mask),
            *(int(written is not None), writes.turn, writes.mask),
        )
        found, first, bits = (memory[result + offset] for offset in (0, 8, 16))
        return Wrong(found, first, bits) if found else None

    following = pattern.complement()
    for expected, written in ((None, pattern), (pattern, following), (following, None)):
        assert sweep(expected, written) == host.sweep(area, expected, written)
        assert {at: word for at, word in memory.items() if at >= BASE} == host.words
    changed = area.address + (words - 1) * 8
    for each in (memory, host.words):
        each[changed] ^= 1 << 40
    assert sweep(following, pattern) == host.sweep(area, following, pattern) == Wrong(1, changed, 1 << 40)


def test_the_kernel_is_what_the_driver_is_asked_for() -> None:
    assert f".entry {NAME.decode()}(" in PTX.decode()
    assert PTX.endswith(b"\0")


# ---------------------------------------------------------------------- a look


@dataclass
class Card:
    """A GPU, as it is scripted."""

    memory: HostMemory = field(default_factory=lambda: HostMemory(areas(4, 4)))
    free: list[int] = field(default_factory=lambda: [100 * GIB])
    total: int = 101 * GIB
    told: list[Counters] = field(
        default_factory=lambda: [Counters(uncorrected=3, row_pending=False, row_failed=False)]
    )
    fails: DriverFailed | None = None
    most: int = 0
    uuid: str = GPU

    def sizes(self) -> tuple[int, int]:
        return (self.free.pop(0) if len(self.free) > 1 else self.free[0]), self.total

    def counters(self) -> Counters:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]

    def take(self, most_bytes: int) -> Sequence[Area]:
        self.most = most_bytes
        if self.fails is not None:
            raise self.fails
        return self.memory.take(most_bytes)

    def sweep(self, area: Area, expected: Pattern | None, written: Pattern | None) -> Wrong | None:
        return self.memory.sweep(area, expected, written)

    def give(self) -> None:
        self.memory.give()


def looked(card: Card, limits: Limits | None = None) -> Finding:
    clock = Clock(step=0.001)
    return look(card, limits or Limits(), Time(clock.now, clock.sleep))


SOUND = Counters(uncorrected=0, row_pending=False, row_failed=False)
BROKEN = HostMemory(areas(4), stuck={BASE: (1, 0)})
CARDS = {
    "sound": (Card(), Outcome.PASSED),
    "errors of earlier": (Card(told=[Counters(uncorrected=7)]), Outcome.PASSED),
    "it tells nothing": (Card(told=[Counters()]), Outcome.PASSED),
    "a row waits": (Card(told=[Counters(row_pending=True)]), Outcome.ROW_PENDING),
    "a row has failed": (Card(told=[Counters(row_pending=True, row_failed=True)]), Outcome.ROW_FAILED),
    "errors meanwhile": (Card(told=[SOUND, Counters(uncorrected=1)]), Outcome.ERRORS),
    "a row waits afterwards": (Card(told=[SOUND, Counters(row_pending=True)]), Outcome.ROW_PENDING),
    "wrong": (Card(memory=BROKEN), Outcome.WRONG),
    "wrong, and counted": (Card(memory=BROKEN, told=[SOUND, Counters(uncorrected=1)]), Outcome.WRONG),
    "an error ends it": (Card(fails=DriverFailed("ecc", by_memory=True)), Outcome.ERRORS),
    "another error ends it": (Card(fails=DriverFailed("other")), Outcome.DRIVER_FAILED),
    "no room to test": (Card(free=[RESERVE_BYTES]), Outcome.PASSED),
    "no compiler": (Card(fails=Untestable("jit")), Outcome.SKIPPED),
}


@pytest.mark.parametrize(("card", "outcome"), CARDS.values(), ids=CARDS.keys())
def test_what_is_found_is_told(card: Card, outcome: Outcome) -> None:
    found = looked(card)
    assert (found.outcome, found.gpu) == (outcome, GPU)
    read = told_in(f"exit status 69; log: first | {found.line} | and more")
    assert read == found


def test_what_says_that_a_gpu_is_at_fault_keeps_the_engine_from_starting() -> None:
    assert Outcome.PASSED in STARTS
    assert Outcome.WRONG not in STARTS
    assert told_in("pre-flight: Nonsense: x") is None
    of_several = (
        "pre-flight: Passed: GPU-a: x\npre-flight: MemoryWrong: GPU-b: y\npre-flight: Passed: GPU-c: z"
    )
    assert told_in(of_several) == Finding(Outcome.WRONG, "GPU-b", "y")
    assert told_in("pre-flight: Skipped: it is off") == Finding(Outcome.SKIPPED, "", "it is off")
    assert told_in("the engine ended") is None


@pytest.mark.parametrize(
    ("free", "needed", "outcome"),
    [
        ([50 * GIB], 40 * GIB, Outcome.PASSED),
        ([30 * GIB, 30 * GIB, 50 * GIB], 40 * GIB, Outcome.PASSED),
        ([40 * GIB - CONTEXT_BYTES], 40 * GIB, Outcome.PASSED),
        ([30 * GIB], 40 * GIB, Outcome.TOO_LITTLE_FREE),
    ],
    ids=["there", "there soon", "there with the look's own context", "not there"],
)
def test_memory_that_the_engine_needs_is_waited_for(free: list[int], needed: int, outcome: Outcome) -> None:
    found = looked(Card(free=free), Limits(needed_bytes=needed))
    assert found.outcome is outcome
    if outcome is Outcome.TOO_LITTLE_FREE:
        assert found.text == "31296 MiB are free, and 40960 are needed"


@pytest.mark.parametrize(
    ("used", "most"),
    [
        (GIB, 100 * GIB - RESERVE_BYTES),
        (ALONE_BYTES, 101 * GIB - ALONE_BYTES - RESERVE_BYTES),
        (ALONE_BYTES + 1, GIB),
        (101 * GIB - RESERVE_BYTES, 0),
    ],
    ids=["alone", "alone still", "beside somebody", "no room"],
)
def test_little_is_tested_beside_somebody_who_may_serve(used: int, most: int) -> None:
    card = Card(free=[101 * GIB - used])
    assert looked(card).outcome is Outcome.PASSED
    assert card.most == most


@pytest.mark.parametrize(("used", "most"), [(GIB, 3 * GIB), (ALONE_BYTES + 1, GIB)])
def test_no_more_is_tested_than_the_engine_may_take_where_somebody_may_come(used: int, most: int) -> None:
    card = Card(free=[101 * GIB - used])
    assert looked(card, Limits(most_bytes=3 * GIB)).outcome is Outcome.PASSED
    assert card.most == most


# ---------------------------------------------------------------------- the process


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("packed") / "preflight.pyz"
    pack(target)
    return target


def run(packed: Path, *arguments: str, switch: str = "On") -> subprocess.CompletedProcess[str]:
    """Run the packed file as an image without Emberpool would, and without a driver."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(packed), *arguments],
        cwd="/",
        env={"PATH": os.environ["PATH"], SWITCH: switch, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_one_file_of_it_becomes_the_engine_where_there_need_be_no_gpu(packed: Path) -> None:
    ended = run(packed, "--allow-none", "--", "sh", "-c", "echo $0 $1; exit 7", "a", "b")
    assert (ended.returncode, ended.stdout) == (7, "a b\n")
    assert ended.stderr.startswith("pre-flight: Skipped: there is no GPU: ")


def test_no_engine_starts_where_there_is_no_gpu_and_has_to_be_one(packed: Path) -> None:
    ended = run(packed, "--", "echo", "up")
    assert (ended.returncode, ended.stdout) == (REFUSED, "")
    assert ended.stderr.startswith("pre-flight: NoGpu: there is no GPU: ")


def test_the_file_is_replaced_whole_and_nothing_else_is_written(tmp_path: Path) -> None:
    target = tmp_path / "preflight.pyz"
    target.write_text("an older one")
    pack(target)
    assert [each.name for each in tmp_path.iterdir()] == ["preflight.pyz"]
    assert os.access(target, os.X_OK)


def test_it_is_switched_off_by_a_variable(packed: Path) -> None:
    ended = run(packed, "--", "true", switch="Off")
    assert (ended.returncode, ended.stderr) == (0, f"pre-flight: Skipped: {SWITCH} is Off\n")
    ended = run(packed, "--", "true", switch="no")
    assert (ended.returncode, "hint: it takes On or Off" in ended.stderr) == (2, True)


def test_a_program_that_is_not_there_is_told(packed: Path) -> None:
    ended = run(packed, "--", "/no/such/engine", switch="Off")
    assert ended.returncode == 127
    assert "error: /no/such/engine can't be started" in ended.stderr
