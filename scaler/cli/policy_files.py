"""Policy files as a command line names them: files, directories, and `-` for what comes through a pipe."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.document import Document, documents_of, load_documents
from scaler.policy.files import MAX_BYTES, file_fault

STDIN: Final = Path("-")
_STDIN_NAME: Final = "stdin"
"""What faults call it."""


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Read files and directories, and stdin where `-` stands among them.

    Raises:
        PolicyError: with all faults of all of them.
    """
    faults: list[PolicyFault] = []
    documents: list[Document] = []
    named = [path for path in paths if path != STDIN]
    if STDIN in paths:
        try:
            documents += documents_of(_piped(), _STDIN_NAME)
        except PolicyError as error:
            faults += error.faults
    try:
        documents += load_documents(named)
    except PolicyError as error:
        faults += error.faults
    if faults:
        raise PolicyError(tuple(faults))
    return documents


def _piped() -> bytes:
    """Read stdin to its end, up to the largest size that a file may have.

    Raises:
        PolicyError: there is more of it.
    """
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        hint = "write it into several files"
        raise PolicyError((file_fault(_STDIN_NAME, f"is larger than {MAX_BYTES // 1024} KiB", hint),))
    return raw
