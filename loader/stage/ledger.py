"""Which checkpoints are held, who holds them, and which go first when room is wanted. Pure; time is an argument."""

from dataclasses import dataclass, field

from loader.errors import StageFull


@dataclass(slots=True)
class _Holding:
    nbytes: int
    used: float
    holders: set[int] = field(default_factory=set)


class Ledger:
    """The books of a pool with a budget.

    Args:
        budget_bytes: the most that is held at once.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._holdings: dict[str, _Holding] = {}

    @property
    def held_bytes(self) -> int:
        """What is held, with what is still being read."""
        return sum(holding.nbytes for holding in self._holdings.values())

    def __contains__(self, key: str) -> bool:
        return key in self._holdings

    def reserve(self, key: str, nbytes: int, now: float) -> list[str]:
        """Make room for a checkpoint and enter it; the keys of those that must go for it, the longest unused first.

        Raises:
            StageFull: it is larger than the budget, or the rest is leased; nothing has changed.
        """
        free = self.budget_bytes - self.held_bytes
        victims = []
        for victim in sorted(self._holdings, key=lambda each: self._holdings[each].used):
            if free >= nbytes:
                break
            if not self._holdings[victim].holders:
                victims.append(victim)
                free += self._holdings[victim].nbytes
        if free < nbytes:
            raise StageFull(
                f"{nbytes} bytes don't fit: of {self.budget_bytes}, {self.budget_bytes - free} are in use",
                file=key,
                hint="raise the daemon's budget, or end a process that holds a checkpoint",
            )
        for victim in victims:
            del self._holdings[victim]
        self._holdings[key] = _Holding(nbytes=nbytes, used=now)
        return victims

    def lease(self, key: str, holder: int, now: float) -> None:
        """A holder uses a checkpoint until it is gone, however often it says so."""
        holding = self._holdings[key]
        holding.used = now
        holding.holders.add(holder)

    def release_all(self, holder: int) -> None:
        """A holder is gone."""
        for holding in self._holdings.values():
            holding.holders.discard(holder)

    def remove(self, key: str) -> None:
        """A checkpoint is held no more."""
        self._holdings.pop(key, None)

    def leases(self, key: str) -> int:
        """How many holders use a checkpoint."""
        return len(self.holders(key))

    def holders(self, key: str) -> frozenset[int]:
        """Who uses a checkpoint."""
        holding = self._holdings.get(key)
        return frozenset(holding.holders) if holding else frozenset()
