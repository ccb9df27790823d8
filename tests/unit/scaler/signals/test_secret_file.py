"""Secrets in files."""

from pathlib import Path

import pytest

from scaler.errors import SignalError
from scaler.signals.secret_file import read_secret


@pytest.mark.parametrize(
    ("content", "secret"),
    [(b"abc", "abc"), (b"abc\n", "abc"), (b"abc\r\n", "abc"), (b" a b ", " a b "), ("pä".encode(), "pä")],
)
def test_a_line_end_belongs_to_no_secret(tmp_path: Path, content: bytes, secret: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    assert read_secret(str(file)) == secret


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty: it must hold a secret"),
        (b"\n", "is empty: it must hold a secret"),
        (b"s3cr3t\r\nX-Header: y", "holds no secret: one line of at most 64 KiB is wanted"),
        (b"s3cr3t\x00", "holds no secret: one line of at most 64 KiB is wanted"),
        (b"x" * 65_537, "holds no secret: one line of at most 64 KiB is wanted"),
        (b"s3cr3t\xff", "holds no secret: it is no UTF-8"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(SignalError) as caught:
        read_secret(str(file))
    assert str(caught.value) == f"{file} {why}"


def test_a_file_that_is_not_there_and_one_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="can't be read: no such file or directory"):
        read_secret(str(tmp_path / "none"))
    with pytest.raises(SignalError, match="can't be read: is a directory"):
        read_secret(str(tmp_path))
