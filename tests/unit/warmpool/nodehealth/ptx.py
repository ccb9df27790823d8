"""Runs a kernel in the driver's assembly, thread by thread, on memory that is a dictionary: what its text does, without a GPU."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

_ENTRY: Final = re.compile(r"\.visible \.entry (\w+)\((.*?)\)\s*\{(.*)\}", re.DOTALL)
_MASKS: Final = {"32": 2**32 - 1, "64": 2**64 - 1}
_TWO: Final[Mapping[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: a + b,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "mul": lambda a, b: a * b,
}
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "eq": lambda a, b: a == b,
}
_ATOMIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: a + b,
    "min": min,
    "or": lambda a, b: a | b,
}


@dataclass
class Kernel:
    """One kernel, its parameters by name, and the memory that it works on."""

    text: str
    memory: dict[int, int]
    parameters: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = _ENTRY.search(self.text)
        assert found is not None
        self.parameters = re.findall(r"\.param \.\w+ (\w+)", found[2])
        for statement in re.split(r"[;\n]", found[3]):
            line = statement.strip()
            if line.endswith(":"):
                self.labels[line[:-1]] = len(self.code)
            elif line and not line.startswith(".reg") and not line.startswith("%"):
                self.code.append(line)

    def launch(self, blocks: int, threads: int, *values: int) -> None:
        given = dict(zip(self.parameters, values, strict=True))
        for block in range(blocks):
            for thread in range(threads):
                places = {
                    "%ctaid.x": block,
                    "%ntid.x": threads,
                    "%tid.x": thread,
                    "%nctaid.x": blocks,
                }
                self._run(given, dict(places))

    def _run(self, given: Mapping[str, int], registers: dict[str, int]) -> None:
        place = 0
        while True:
            line = self.code[place]
            place += 1
            if line.startswith("@"):
                condition, line = line[1:].split(maxsplit=1)
                if not registers[condition]:
                    continue
            if line == "ret":
                return
            name, rest = line.split(maxsplit=1)
            if name == "bra":
                place = self.labels[rest]
                continue
            self._step(name.split("."), [each.strip() for each in rest.split(",")], given, registers)

    def _step(self, name: list[str], words: list[str], given: Mapping[str, int], r: dict[str, int]) -> None:
        if name[:2] == ["ld", "param"]:
            r[words[0]] = given[words[1].strip("[]")]
        elif name[1] == "global":
            self._access(name, words, r)
        else:
            r[words[0]] = _calculated(name, words, r)

    def _access(self, name: list[str], words: list[str], r: dict[str, int]) -> None:
        def address(word: str) -> int:
            base, _, offset = word.strip("[]").partition("+")
            return r[base] + int(offset or 0)

        match name[0]:
            case "ld":
                r[words[0]] = self.memory[address(words[1])]
            case "st":
                self.memory[address(words[0])] = _value(words[1], r)
            case "atom":
                where = address(words[1])
                r[words[0]] = self.memory[where]
                after = _ATOMIC[name[2]](self.memory[where], _value(words[2], r))
                self.memory[where] = after & _MASKS["64"]


def _value(word: str, r: Mapping[str, int]) -> int:
    return r[word] if word in r else int(word, 0)


def _calculated(name: list[str], words: list[str], r: Mapping[str, int]) -> int:
    values = [_value(word, r) for word in words[1:]]
    mask = _MASKS[name[-1][1:]]
    match name[0]:
        case "setp":
            return int(_COMPARED[name[1]](*values))
        case "selp":
            return values[0] if values[2] else values[1]
        case "mov":
            return values[0] & mask
        case "cvt":
            return values[0] & _MASKS[name[1][1:]] & mask
        case "mul":
            assert name[1] == "wide"
            return values[0] * values[1]
        case how:
            return _TWO[how](*values) & mask
