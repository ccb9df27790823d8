"""The file has to run in images that we don't make."""

import ast
import sys
from pathlib import Path

from warmpool import launcher

SOURCE = Path(launcher.__file__)
NEWER = {
    # what Python 3.9 lacks, of what one is likely to reach for
    "match": ast.Match,
    "except*": ast.TryStar,
}
NEWER_NAMES = {
    ("dataclass", "slots"),
    ("dataclass", "kw_only"),
    ("zip", "strict"),
    ("field", "kw_only"),
}
NEWER_MODULES = {"tomllib"}
NEWER_ATTRIBUTES = {
    "StrEnum",
    "Self",
    "TaskGroup",
    "timeout",
    "pairwise",
    "batched",
    "UTC",
    "walk",
    "F_SETPIPE_SZ",
    "process_group",
}


def tree() -> ast.Module:
    return ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_it_has_the_syntax_of_python_3_9() -> None:
    for what, kind in NEWER.items():
        assert not [node for node in ast.walk(tree()) if isinstance(node, kind)], what


def test_it_imports_the_standard_library_alone() -> None:
    imported = set()
    for node in ast.walk(tree()):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).split(".")[0])
    assert imported
    assert imported <= sys.stdlib_module_names
    assert not imported & NEWER_MODULES


def test_it_uses_nothing_that_came_after_python_3_9() -> None:
    for node in ast.walk(tree()):
        if isinstance(node, ast.Attribute):
            assert node.attr not in NEWER_ATTRIBUTES, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for keyword in node.keywords:
                assert (node.func.id, keyword.arg) not in NEWER_NAMES, node.lineno


def test_annotations_are_not_evaluated() -> None:
    """Python 3.9 can't evaluate `int | None`."""
    first = next(node for node in tree().body if isinstance(node, ast.ImportFrom))
    assert (first.module, [alias.name for alias in first.names]) == ("__future__", ["annotations"])


def test_unions_stand_in_annotations_alone() -> None:
    types = {"None", "int", "str", "bytes", "float"}
    for node in ast.walk(without_annotations()):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            names = {each.id for each in (node.left, node.right) if isinstance(each, ast.Name)}
            assert not names & types, node.lineno
            assert not [
                each
                for each in (node.left, node.right)
                if isinstance(each, ast.Constant) and each.value is None
            ]


def without_annotations() -> ast.Module:
    class Bare(ast.NodeTransformer):
        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            if node.value is None:
                return ast.Pass()
            return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

        def visit_arg(self, node: ast.arg) -> ast.AST:
            node.annotation = None
            return node

    bare = Bare().visit(tree())
    assert isinstance(bare, ast.Module)
    return bare
