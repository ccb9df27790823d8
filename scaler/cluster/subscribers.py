"""Who wants to hear that seats, or objects that they are made of, have changed."""

from collections.abc import Callable


class Subscribers:
    """Functions that are called after each change."""

    def __init__(self) -> None:
        self._all: list[Callable[[], None]] = []

    def add(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` from now on; the returned function ends that, and may be called again."""
        self._all.append(changed)

        def end() -> None:
            if changed in self._all:
                self._all.remove(changed)

        return end

    def tell(self) -> None:
        """Call all, in the order in which they came; one that comes or goes meanwhile changes nothing about that."""
        for changed in tuple(self._all):
            changed()
