"""Which files are read, and what a file must be to be read at all."""

import os
import time
from pathlib import Path
from threading import Thread

import pytest

from scaler.errors import PolicyError
from scaler.policy.document import load_documents
from scaler.policy.files import MAX_BYTES, find_files


def data(*paths: Path) -> list[object]:
    return [document.data for document in load_documents(paths)]


def refused(*paths: Path) -> list[tuple[str, int, int, str]]:
    with pytest.raises(PolicyError) as raised:
        load_documents(paths)
    return [(Path(f.file).name, f.line, f.column, f.message) for f in raised.value.faults]


def test_a_directory_gives_its_yaml_files_in_order_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("b: 1", encoding="utf-8")
    (tmp_path / "a.yml").write_text("a: 1", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not: yaml: at all", encoding="utf-8")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c.yaml").write_text("c: 1", encoding="utf-8")
    assert data(tmp_path, tmp_path / "b.yaml") == [{"a": 1}, {"b": 1}]


def test_a_mounted_configmap_gives_each_key_once(tmp_path: Path) -> None:
    version = tmp_path / "..2026_11_30_09_15_22.1234567890"
    version.mkdir()
    (version / "a.yaml").write_text("a: 1", encoding="utf-8")
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert data(tmp_path) == [{"a": 1}]


def test_hidden_files_and_what_editors_leave_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1", encoding="utf-8")
    (tmp_path / ".a.yaml").write_text("a: [", encoding="utf-8")
    (tmp_path / "a.yaml~").write_text("a: [", encoding="utf-8")
    (tmp_path / ".#a.yaml").symlink_to("somebody@host.1234")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert data(tmp_path) == [{"a": 1}]


def test_a_hidden_file_is_read_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".a.yaml").write_text("a: 1", encoding="utf-8")
    assert data(tmp_path / ".a.yaml") == [{"a": 1}]


def test_links_in_a_circle_are_a_fault_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    assert [message for *_, message in refused(tmp_path)] == [
        "can't be read: Too many levels of symbolic links",
    ] * len(find_files([tmp_path]))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1")
    assert data(file) == [{"a": 1}]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param("a: 1".encode("utf-16"), (1, 1, "is UTF-16, not UTF-8"), id="utf-16"),
        pytest.param(
            b"\xfe\xff" + "a: 1".encode("utf-16-be"), (1, 1, "is UTF-16, not UTF-8"), id="big-endian"
        ),
        pytest.param("a: 1".encode("utf-32"), (1, 1, "is UTF-32, not UTF-8"), id="utf-32"),
        pytest.param(
            "a: 1".encode("utf-16-le"),
            (1, 2, "the character U+0000 is not allowed in YAML"),
            id="utf-16-without-mark",
        ),
        pytest.param(
            "a: 1\r\nname: Zoë".encode("latin-1"),
            (2, 9, "is not UTF-8: byte 0xeb can't be decoded"),
            id="latin-1",
        ),
        pytest.param(
            "ä: 1\rß: ".encode() + b"\xff",
            (2, 4, "is not UTF-8: byte 0xff can't be decoded"),
            id="characters",
        ),
        pytest.param(
            b"\xef\xbb\xbfa: \x80", (1, 4, "is not UTF-8: byte 0x80 can't be decoded"), id="behind-a-mark"
        ),
        pytest.param(b"", (1, 1, "the file holds no document"), id="empty"),
    ],
)
def test_other_encodings_are_named(tmp_path: Path, raw: bytes, expected: tuple[int, int, str]) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(raw)
    assert refused(file) == [("f.yaml", *expected)]


@pytest.mark.wall_clock
def test_a_file_of_ten_megabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"a: 1\n" * 2_000_000)
    began = time.process_time()
    assert refused(file) == [("large.yaml", 1, 1, "is larger than 1024 KiB")]
    assert time.process_time() - began < 0.2


def test_all_unusable_files_are_named_at_once_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("a: Zoë".encode("latin-1"))
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.yaml").write_text("a: [", encoding="utf-8")
    (tmp_path / "link.yaml").symlink_to("nowhere.yaml")
    names = ["latin.yaml", "large.yaml", "missing.yaml", "empty", "torn.yaml", "link.yaml"]
    assert refused(*(tmp_path / name for name in names)) == [
        ("latin.yaml", 1, 6, "is not UTF-8: byte 0xeb can't be decoded"),
        ("large.yaml", 1, 1, "is larger than 1024 KiB"),
        ("missing.yaml", 1, 1, "no such file"),
        ("empty", 1, 1, "the directory holds no *.yaml or *.yml file"),
        ("torn.yaml", 1, 5, "is not valid YAML: expected the node content, but found the end of the file"),
        ("link.yaml", 1, 1, "is a link to a file that isn't there"),
    ]


# ------------------------------------------------------------------ pipes


def test_a_pipe_into_which_nobody_writes_is_a_fault_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == [("pipe", 1, 1, "is a pipe into which nobody writes")]


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = "a: 1\n" + "# more than a pipe holds at once\n" * 10_000
    writer = Thread(target=(tmp_path / "pipe").write_text, args=(text,))
    writer.start()
    assert data(tmp_path / "pipe") == [{"a": 1}]
    writer.join()


def test_what_a_shell_puts_in_the_place_of_a_command_is_read() -> None:
    read, write = os.pipe()
    os.write(write, b"a: 1")
    os.close(write)
    assert data(Path(f"/dev/fd/{read}")) == [{"a": 1}]
    os.close(read)


def test_a_writer_may_take_its_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    found: list[object] = []
    reader = Thread(target=lambda: found.extend(data(tmp_path / "pipe")))
    reader.start()
    reader.join(timeout=1.5)  # longer than one has to come at all
    assert reader.is_alive()
    os.write(writer, b"a: 1")
    os.close(writer)
    reader.join()
    assert found == [{"a": 1}]
