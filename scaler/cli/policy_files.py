"""Policy files as a command line names them: files, directories, and `-` for what comes through a pipe."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaler.policy.compile import PolicySet, compile_contents
from scaler.policy.document import Contents, Document, contents_of, documents_in, load_contents
from scaler.policy.files import MAX_BYTES, file_fault, find_files

STDIN: Final = Path("-")
_STDIN_NAME: Final = "stdin"
"""What faults call it."""


def read_contents(paths: Sequence[Path]) -> list[Contents]:
    """Read files and directories in order, and stdin where `-` first stands among them; never raises."""
    named = [path for path in paths if path != STDIN]
    contents = load_contents(named)
    if STDIN in paths:
        before = len(find_files(named[: paths.index(STDIN)]))
        contents.insert(before, read_piped())
    return contents


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Read the documents of files, directories and stdin.

    Raises:
        PolicyError: with all faults of all of them, whatever documents say.
    """
    return documents_in(read_contents(paths))


def read_set(paths: Sequence[Path]) -> tuple[PolicySet, list[Document]]:
    """Read the set that files, directories and stdin make up, and its documents.

    Raises:
        PolicyError: with all faults of files, of documents, and between documents, in the order of the files.
    """
    contents = read_contents(paths)
    return compile_contents(contents), documents_in(contents)


def read_piped() -> Contents:
    """Read stdin to its end as one file, up to the largest size that a file may have."""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        hint = "write it into several files"
        fault = file_fault(_STDIN_NAME, f"is larger than {MAX_BYTES // 1024} KiB", hint)
        return Contents(_STDIN_NAME, faults=(fault,), whole=False)
    return contents_of(raw, _STDIN_NAME)
