"""The middleware's file is copied into images that we don't make."""

import ast
import sys
from pathlib import Path

from warmpool import guard_middleware

TEXT = Path(guard_middleware.__file__).read_text(encoding="utf-8")


def test_it_imports_the_standard_library_alone() -> None:
    imported = set()
    for node in ast.walk(ast.parse(TEXT)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).partition(".")[0])
    assert "asyncio" in imported
    assert imported <= sys.stdlib_module_names


def test_it_has_the_syntax_of_python_3_9_and_evaluates_no_annotations() -> None:
    tree = ast.parse(TEXT, feature_version=(3, 9))
    newer = (ast.Match, ast.TryStar)
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    first = next(node for node in tree.body if isinstance(node, ast.ImportFrom))
    assert (first.module, [alias.name for alias in first.names]) == ("__future__", ["annotations"])
