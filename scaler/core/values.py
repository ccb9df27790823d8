"""Values that nobody changes, as the type checker sees to it.

A frozen dataclass checks each assignment when it runs, also those of its own `__init__`, and so takes three times as long to
make as one that isn't frozen. The law makes some twenty values per policy at each look, which was a seventh of its time. So
these are frozen where a mistake would be made, in the source, and plain where they are made. What is made once, as specs
are, is a frozen dataclass all the same. For the same reason mappings of the law are plain dictionaries that are typed as
`Mapping`, and what it makes at each look gets its fields by place: a class that is called with names makes a dictionary of
them first, which takes as long as all else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Kind = TypeVar("_Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, kw_only: bool = False) -> Callable[[type[_Kind]], type[_Kind]]:
    """Make a class a dataclass with slots that is frozen for the type checker.

    Args:
        kw_only: fields are given by name alone.
    """

    def make(kind: type[_Kind]) -> type[_Kind]:
        return dataclass(slots=True, kw_only=kw_only, unsafe_hash=True)(kind)

    return make
