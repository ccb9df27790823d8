"""Collects what an engine said after a change, and comes to a verdict: one contradiction rules, then one thing that can't be told."""

from dataclasses import dataclass, field

from warmpool.engines.capabilities import Change, Verdict, Verification
from warmpool.errors import EngineContradicted


@dataclass(slots=True)
class Evidence:
    """What speaks for a change having taken place.

    Attributes:
        change: what the engine was told.
    """

    change: Change
    _lines: list[str] = field(default_factory=list)
    _asked: bool = False
    _open: bool = False

    def told(self, line: str) -> None:
        """Note that the engine's own state agrees."""
        self._asked = True
        self._lines.append(line)

    def untold(self, line: str) -> None:
        """Note something that the engine doesn't tell, so that the change as a whole can't be verified."""
        self._open = True
        self._lines.append(line)

    def contradict(self, line: str) -> EngineContradicted:
        """Return the error to raise because the engine's own state disagrees."""
        lines = (*self._lines, line)
        return EngineContradicted(
            Verification(change=self.change, verdict=Verdict.CONTRADICTED, evidence=lines)
        )

    def verification(self) -> Verification:
        """Come to a verdict; without any answer nothing is verified."""
        verdict = Verdict.VERIFIED if self._asked and not self._open else Verdict.UNVERIFIED
        return Verification(change=self.change, verdict=verdict, evidence=tuple(self._lines))
