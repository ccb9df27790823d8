"""Memory that a pre-flight tests: host memory with faults in it, and what holds of any, a GPU's too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from warmpool.nodehealth.preflight.march import Area, Memory, Wrong, march
from warmpool.nodehealth.preflight.patterns import ALL_BITS, WORD_BYTES, Pattern, pairs

BASE = 0x7F00_0000_0000


@dataclass
class HostMemory:
    """Words at addresses. Faults: bits that are stuck, words that land elsewhere, and one that is lost after some sweeps."""

    areas: Sequence[Area]
    stuck: dict[int, tuple[int, int]] = field(default_factory=dict)
    lands: dict[int, int] = field(default_factory=dict)
    words: dict[int, int] = field(default_factory=dict)
    sweeps: int = 0
    given: int = 0

    def take(self, most_bytes: int) -> Sequence[Area]:
        taken: list[Area] = []
        for area in self.areas:
            if sum(each.nbytes for each in taken) + area.nbytes <= most_bytes:
                taken.append(area)
        return taken

    def give(self) -> None:
        self.given += 1

    def poke(self, address: int, word: int) -> None:
        self.words[address] = word

    def sweep(self, area: Area, expected: Pattern | None, written: Pattern | None) -> Wrong | None:
        self.sweeps += 1
        wrong: list[tuple[int, int]] = []
        for address in range(area.address, area.address + area.nbytes, WORD_BYTES):
            if expected is not None and (differs := self._read(address) ^ expected.word(address)):
                wrong.append((address, differs))
            if written is not None:
                self.words[self.lands.get(address, address)] = written.word(address)
        if not wrong:
            return None
        bits = 0
        for _, differs in wrong:
            bits |= differs
        return Wrong(words=len(wrong), first=min(address for address, _ in wrong), bits=bits)

    def _read(self, address: int) -> int:
        always, never = self.stuck.get(address, (0, 0))
        return (self.words.get(self.lands.get(address, address), 0) | always) & ~never & ALL_BITS


def areas(*words: int) -> list[Area]:
    """Areas of so many words, with holes between them."""
    found, address = [], BASE
    for count in words:
        found.append(Area(address, count * WORD_BYTES))
        address += (count + 3) * WORD_BYTES
    return found


class Subject(Memory, Protocol):
    """Memory into which a test can write what it likes."""

    def poke(self, address: int, word: int) -> None: ...


def some_patterns() -> Iterator[Pattern]:
    for pattern, complement in islice(pairs(), 4):
        yield from (pattern, complement)


def holds_what_was_written(memory: Subject, most_bytes: int) -> None:
    """What is written is read again, and one word that was changed is found, and told as it is."""
    taken = memory.take(most_bytes)
    try:
        assert taken
        assert 0 < sum(area.nbytes for area in taken) <= most_bytes
        for pattern in some_patterns():
            for area in taken:
                assert memory.sweep(area, None, pattern) is None
            for area in taken:
                assert memory.sweep(area, pattern, None) is None
            area = taken[-1]
            first = area.address + area.nbytes // WORD_BYTES // 2 * WORD_BYTES
            last = area.address + area.nbytes - WORD_BYTES
            memory.poke(first, pattern.word(first) ^ 0b101)
            memory.poke(last, pattern.word(last) ^ (1 << 63))
            expected = Wrong(words=2, first=first, bits=0b101 | 1 << 63)
            if first == last:
                expected = Wrong(words=1, first=last, bits=1 << 63)
            assert memory.sweep(area, pattern, pattern) == expected
    finally:
        memory.give()


def passes_a_march(memory: Memory, most_bytes: int) -> None:
    """A march over sound memory covers all that it took, and gives it back."""
    times = iter(range(1_000_000))
    coverage = march(memory, most_bytes, 100.0, lambda: float(next(times)) / 100)
    assert coverage.wrong is None
    assert 0 < coverage.covered_bytes == coverage.taken_bytes <= most_bytes
    assert coverage.patterns > 1
