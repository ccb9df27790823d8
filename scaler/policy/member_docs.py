"""Docstrings of enumeration members, which Python itself doesn't keep: they are read from the source.

That is how pydantic finds the docstrings of a model's fields. Both need the `.py` files, which every installation has.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from enum import Enum
from functools import cache
from itertools import pairwise
from types import MappingProxyType


@cache
def member_docs(enumeration: type[Enum]) -> Mapping[str, str]:
    """Return the docstring below each member that has one, by the member's name.

    Raises:
        OSError: the source isn't there.
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(enumeration))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for statement, following in pairwise(definition.body):
        match statement, following:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ):
                docs[name] = inspect.cleandoc(doc)
            case _:
                pass
    return MappingProxyType(docs)
