"""A set that is read again and again: what hasn't changed stays, and every way to change a file is noticed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler.errors import PolicyError
from scaler.policy.reading import PolicyFiles

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 4}
"""
POLICY = """\
# a comment
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: NAME}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
"""


def policy(name: str) -> str:
    return POLICY.replace("NAME", name)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "policies"
    directory.mkdir()
    (directory / "fleet.yaml").write_text(FLEET, "utf-8")
    (directory / "chat.yaml").write_text(policy("chat"), "utf-8")
    (directory / "more.yaml").write_text(f"{policy('code')}---\n{policy('math')}", "utf-8")
    return directory


def faults(files: PolicyFiles) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        files.read()
    return [f"{Path(fault.file).name}:{fault.line}: {fault.message}" for fault in raised.value.faults]


def test_a_reading_tells_the_set_its_files_and_where_each_document_stands(directory: Path) -> None:
    reading = PolicyFiles([directory]).read()
    assert list(reading.set.policies) == ["chat", "code", "math"]
    assert reading.files == tuple(str(directory / name) for name in ("chat.yaml", "fleet.yaml", "more.yaml"))
    assert {
        key: (Path(place.file).name, place.line, place.column) for key, place in reading.places.items()
    } == {
        ("ScalingPolicy", "chat"): ("chat.yaml", 4, 18),
        ("Fleet", "spares"): ("fleet.yaml", 3, 18),
        ("ScalingPolicy", "code"): ("more.yaml", 4, 18),
        ("ScalingPolicy", "math"): ("more.yaml", 11, 18),
    }
    fault = reading.fault("Fleet", "spares", "has no seat")
    assert str(fault) == f"{directory / 'fleet.yaml'}:3:18: metadata.name: has no seat"


def test_only_what_has_changed_is_parsed_again(directory: Path) -> None:
    files = PolicyFiles([directory])
    before = files.read().set
    os.utime(directory / "more.yaml", (1, 1))  # touched only
    (directory / "chat.yaml").write_text(policy("talk"), "utf-8")
    after = files.read().set
    assert list(after.policies) == ["talk", "code", "math"]
    assert after.policies["code"] is before.policies["code"]
    assert after.fleets["spares"] is before.fleets["spares"]


def test_a_deleted_file_takes_its_documents_with_it(directory: Path) -> None:
    files = PolicyFiles([directory])
    files.read()
    (directory / "more.yaml").unlink()
    assert list(files.read().set.policies) == ["chat"]


def test_all_faults_of_all_files_come_at_once_and_a_mended_file_is_read_again(directory: Path) -> None:
    (directory / "chat.yaml").write_text("kind: [", "utf-8")
    (directory / "fleet.yaml").write_text(FLEET.replace("4", "four"), "utf-8")
    files = PolicyFiles([directory])
    assert faults(files) == [
        "chat.yaml:1: is not valid YAML: expected the node content, but found the end of the file",
        'fleet.yaml:4: must be an integer from 1 to 100000, is "four"',
    ]
    (directory / "chat.yaml").write_text(policy("chat"), "utf-8")
    assert faults(files) == ['fleet.yaml:4: must be an integer from 1 to 100000, is "four"']
    (directory / "fleet.yaml").write_text(FLEET, "utf-8")
    assert list(files.read().set.policies) == ["chat", "code", "math"]


def test_rules_between_files_are_looked_at_beside_a_file_with_a_fault(directory: Path) -> None:
    (directory / "chat.yaml").write_text(
        policy("code").replace("targetInFlight: 4", "targetInFlight: x"), "utf-8"
    )
    assert faults(PolicyFiles([directory])) == [
        'chat.yaml:6: must be an integer from 1 to 100000, is "x"',
        f"more.yaml:4: the ScalingPolicy code is already defined in {directory / 'chat.yaml'}:4",
    ]


def test_rules_between_files_are_looked_at_each_time(directory: Path) -> None:
    files = PolicyFiles([directory])
    files.read()
    (directory / "fleet.yaml").unlink()
    assert faults(files)[0] == "chat.yaml:6: there is no fleet spares"


def test_a_pipe_is_refused_because_it_can_be_read_once_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert faults(PolicyFiles([tmp_path / "pipe"])) == ["pipe:1: is no regular file, and can't be read again"]


# ------------------------------------------------------------------ noticing


def write(directory: Path) -> None:
    (directory / "chat.yaml").write_text(policy("talk"), "utf-8")


def rename_over(directory: Path) -> None:
    """Save as editors do, with the very size and times of the old file."""
    old, new = directory / "chat.yaml", directory / "chat.yaml.tmp"
    new.write_text(policy("talk"), "utf-8")
    status = old.stat()
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(old)


def touch(directory: Path) -> None:
    os.utime(directory / "chat.yaml", (1, 1))


def add(directory: Path) -> None:
    (directory / "new.yaml").write_text(policy("new"), "utf-8")


def remove(directory: Path) -> None:
    (directory / "chat.yaml").unlink()


def remove_all(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


@pytest.mark.parametrize("change", [write, rename_over, touch, add, remove, remove_all])
def test_every_change_gives_another_signature(directory: Path, change: Callable[[Path], None]) -> None:
    files = PolicyFiles([directory])
    before = files.signature()
    assert files.signature() == before
    change(directory)
    assert files.signature() != before


def test_the_swap_of_a_configmap_gives_another_signature_and_set(tmp_path: Path) -> None:
    for version, name in (("..2026_1", "chat"), ("..2026_2", "talk")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "all.yaml").write_text(f"{FLEET}---\n{policy(name)}", "utf-8")
        os.utime(tmp_path / version / "all.yaml", (1, 1))
    (tmp_path / "..data").symlink_to("..2026_1")
    (tmp_path / "all.yaml").symlink_to("..data/all.yaml")
    files = PolicyFiles([tmp_path])
    before = files.signature()
    assert list(files.read().set.policies) == ["chat"]
    (tmp_path / "..data_tmp").symlink_to("..2026_2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert files.signature() != before
    assert list(files.read().set.policies) == ["talk"]


def test_what_cant_be_looked_at_has_a_signature_too(tmp_path: Path) -> None:
    files = PolicyFiles([tmp_path / "missing.yaml", tmp_path])
    before = files.signature()
    (tmp_path / "missing.yaml").write_text(FLEET, "utf-8")
    assert files.signature() != before
