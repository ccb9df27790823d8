"""The rule that entries of a list differ."""

from collections import Counter
from collections.abc import Iterator, Sequence

from scaler.policy.base import Broken
from scaler.policy.document import Path


def repeated(path: tuple[str, ...], names: Sequence[str], key: str | None = None) -> Iterator[Broken]:
    """Yield a broken rule for each name that an earlier entry of the list has already.

    Args:
        path: the list.
        names: what must differ, entry by entry.
        key: the entry's key that holds it; None when the entry is the name.
    """
    counted = Counter[str]()
    for index, name in enumerate(names):
        counted[name] += 1
        if counted[name] > 1:
            place: Path = (*path, index) if key is None else (*path, index, key)
            yield Broken(path=place, message=f"{name} is listed twice", hint="keep one entry")
