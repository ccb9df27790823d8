"""The rule that entries of a list differ."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from scaler.policy.base import Broken, Unsound, sound_entries
from scaler.policy.document import Path


def repeated(path: Path, entries: Iterable[Any], key: str | None = None) -> Iterator[Broken]:
    """Yield a broken rule for each name that an earlier entry of the list has already.

    Args:
        path: the list.
        entries: its entries.
        key: the field, and the key, that holds an entry's name; None when the entry is the name.
    """
    counted = Counter[str]()
    for index, entry in sound_entries(entries):
        with suppress(Unsound):
            name = entry if key is None else getattr(entry, key)
            counted[name] += 1
            if counted[name] > 1:
                place = (*path, index) if key is None else (*path, index, key)
                yield Broken(path=place, message=f"{name} is listed twice", hint="keep one entry")
