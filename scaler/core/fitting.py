"""Whether counts can be seats: who can serve where, on a fleet whose seats don't all have the same residents up.

Each policy's reach says how many seats it could have, and not that they are the very ones that another counts on. Five
policies of which two seats have a resident up could be given two seats each, ten in all; whoever comes first by name then has
both for good, and the others are told that they were given seats. So a seat is only given if all that were given so far can
have theirs at the same time: if there is a matching, with this one in it, of what was given to kinds of seats (augmenting
paths, H. Kuhn 1955). Whoever has been given a seat keeps the count of it; it may become a seat of another kind.

It is a question of counts, like all that is decided here. Which seats these are, and who has to go elsewhere for it, is the
planner's business.
"""

from collections.abc import Sequence

from scaler.core.model import Kind
from warmpool.seats import PolicyName

_COUNT_MAX = 1_000_000_000


class Fit:
    """The seats of one fleet by kind, while they are handed out.

    Args:
        kinds: what there is.
    """

    __slots__ = ("_able", "_free", "_held", "_kinds")

    def __init__(self, kinds: Sequence[Kind]) -> None:
        # Seats that are of use to few come first: those that suit many stay free for longer.
        self._kinds = sorted(kinds, key=lambda kind: (len(kind.up) + len(kind.starts), kind.up, kind.starts))
        self._free = [max(0, min(kind.seats, _COUNT_MAX)) for kind in self._kinds]
        self._held: list[dict[PolicyName, int]] = [{} for _ in self._kinds]
        self._able: dict[PolicyName, list[int]] = {}

    def give(self, policy: PolicyName, seats: int, *, starts: bool) -> int:
        """Give a policy more seats, as many as can be, and return how many that are.

        Args:
            policy: who gets them.
            seats: so many at most.
            starts: a resident is to start there, and not to serve; the same each time for a policy.
        """
        if policy not in self._able:
            self._able[policy] = [
                index
                for index, kind in enumerate(self._kinds)
                if policy in (kind.starts if starts else kind.up)
            ]
        given = 0
        while given < seats:
            more = self._from_free(policy, seats - given) or self._by_moving(policy)
            if not more:
                break
            given += more
        return given

    def _from_free(self, policy: PolicyName, seats: int) -> int:
        for kind in self._able[policy]:
            if self._free[kind]:
                taken = min(self._free[kind], seats)
                self._free[kind] -= taken
                self._add(kind, policy, taken)
                return taken
        return 0

    def _by_moving(self, policy: PolicyName) -> int:
        """Give one seat of a kind that is full, where others can move on until one of them comes to a kind that isn't."""
        came: dict[int, tuple[int, PolicyName] | None] = dict.fromkeys(self._able[policy])
        queue = list(came)
        for kind in queue:
            for holder in self._held[kind]:
                for other in self._able[holder]:
                    if other in came:
                        continue
                    came[other] = (kind, holder)
                    if self._free[other]:
                        self._free[other] -= 1
                        self._add(self._shift(came, other), policy, 1)
                        return 1
                    queue.append(other)
        return 0

    def _shift(self, came: dict[int, tuple[int, PolicyName] | None], kind: int) -> int:
        """Move each on the way one kind on, and return the kind that is left free."""
        while (step := came[kind]) is not None:
            before, holder = step
            self._add(kind, holder, 1)
            self._add(before, holder, -1)
            kind = before
        return kind

    def _add(self, kind: int, policy: PolicyName, seats: int) -> None:
        held = self._held[kind]
        held[policy] = held.get(policy, 0) + seats
        if not held[policy]:
            del held[policy]
