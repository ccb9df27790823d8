"""`emberpool policy new` on a terminal: it asks, takes defaults, asks again, and leaves stdout to the file."""

import os
import pty
import tempfile
from pathlib import Path

import pytest

from scaler.policy.compile import load_policies
from tests.fakes.forked import Emberpool


class Person:
    """Somebody at a terminal who reads each question before answering it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._end, theirs = pty.openpty()
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - who leaves closes it
        self._process = Emberpool.shared().start(
            ["policy", "new", *arguments],
            {**os.environ, "NO_COLOR": "1"},
            streams=(theirs, self._out.fileno(), theirs),
            directory=folder,
        )
        os.close(theirs)
        self.seen = ""

    def read_to(self, text: str) -> None:
        """Read until the screen ends with `text`."""
        while not self.seen.endswith(text):
            self.seen += os.read(self._end, 4096).decode()

    def answer(self, question: str, line: str) -> None:
        self.read_to(f"{question}: ")
        os.write(self._end, line.encode() + b"\n")
        self.seen += "…"

    def hang_up(self) -> None:
        os.write(self._end, b"\x04")

    def leave(self) -> tuple[int, str]:
        """Wait for the end; return exit code and stdout."""
        code = self._process.wait(60)
        with self._out:
            self._out.seek(0)
            out = self._out.read()
        try:
            while chunk := os.read(self._end, 4096):
                self.seen += chunk.decode()
        except OSError:  # the other end is closed: Linux says EIO
            pass
        os.close(self._end)
        return code, out.decode()


def test_what_no_flag_says_is_asked_for(tmp_path: Path) -> None:
    person = Person(tmp_path, "--max-seats", "5")
    person.answer("NAME", "chat")
    person.answer("shared-fleet", "")
    person.answer("engine [VLLM]", "sglang")
    person.answer("target-in-flight", "16")
    person.answer("serving-min [1]", "")
    person.answer("ttft [1]", "0.5")
    person.answer("gpus [1]", "")
    person.answer("spare [1]", "2")
    person.answer("resized-by [Emberpool]", "keda")
    code, out = person.leave()
    assert (code, out) == (0, "")
    assert "max-seats:" not in person.seen
    assert "as an HPA's minReplicas" in person.seen
    policies = load_policies([tmp_path / "chat.yaml"])
    fleet, policy = policies.fleets["chat"].spec, policies.policies["chat"].spec
    assert (fleet.max_seats, fleet.spare.min, fleet.resized_by) == (5, 2, "Keda")
    assert (policy.engine.type, policy.objectives.ttft.limit_seconds) == ("SGLang", 0.5)


def test_an_answer_that_cannot_be_used_is_asked_for_again(tmp_path: Path) -> None:
    person = Person(
        tmp_path, "chat", "--max-seats", "5", "--shared-fleet", "spares", "--engine", "VLLM", "--dry-run"
    )
    for answer in ("many", "0", "", "16"):
        person.answer("target-in-flight", answer)
    for question in ("serving-min [1]", "ttft [1]", "gpus [1]", "spare [1]", "resized-by [Emberpool]"):
        person.answer(question, "")
    code, out = person.leave()
    assert code == 0
    assert person.seen.count("must be a whole number from 1 to 100000") == 3
    assert out.startswith("# yaml-language-server:")


def test_yes_asks_nothing(tmp_path: Path) -> None:
    person = Person(tmp_path, "chat", "--max-seats", "5", "--target-in-flight", "16", "--yes")
    code, _ = person.leave()
    assert code == 0
    assert load_policies([tmp_path / "chat.yaml"]).policies.keys() == {"chat"}


@pytest.mark.parametrize("asked", ["NAME", "shared-fleet"])
@pytest.mark.long
def test_who_hangs_up_leaves_nothing_behind(tmp_path: Path, asked: str) -> None:
    person = Person(tmp_path, *(["chat"] if asked == "shared-fleet" else []))
    person.read_to(f"{asked}: ")
    person.hang_up()
    code, out = person.leave()
    assert (code, out) == (1, "")
    assert "Traceback" not in person.seen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_answers_that_contradict_those_before_are_asked_for_again(tmp_path: Path) -> None:
    person = Person(tmp_path, "chat")
    person.answer("shared-fleet", "")
    person.answer("engine [VLLM]", "")
    person.answer("target-in-flight", "8")
    person.answer("serving-min [1]", "4")
    person.answer("ttft [1]", "")
    person.answer("max-seats", "1")
    person.answer("max-seats", "5")
    person.answer("gpus [1]", "")
    person.answer("spare [1]", "2")
    person.answer("spare [1]", "1")
    person.answer("resized-by [Emberpool]", "")
    code, _ = person.leave()
    assert code == 0
    assert "must be a whole number from 4 to 100000" in person.seen
    assert "must be a whole number from 0 to 1" in person.seen
    assert load_policies([tmp_path / "chat.yaml"]).fleets["chat"].spec.max_seats == 5


@pytest.mark.long
def test_a_name_that_is_taken_is_asked_for_again(tmp_path: Path) -> None:
    first = Person(tmp_path, "chat", "--max-seats", "5", "--target-in-flight", "16", "--yes")
    assert first.leave()[0] == 0
    person = Person(tmp_path, "--beside", "chat.yaml", "--output", "code.yaml", "--max-seats", "3")
    person.answer("NAME", "chat")
    person.answer("NAME", "code")
    person.read_to("shared-fleet: ")
    person.hang_up()
    person.leave()
    assert "chat is taken by a policy that there is already" in person.seen


@pytest.mark.long
def test_answers_that_cannot_be_used_together_are_kept(tmp_path: Path) -> None:
    first = Person(tmp_path, "chat", "--max-seats", "2", "--target-in-flight", "16", "--yes")
    assert first.leave()[0] == 0
    person = Person(tmp_path, "code", "--beside", "chat.yaml", "--fleet", "chat")  # whose two seats are taken
    person.answer("shared-fleet", "")
    person.answer("engine [VLLM]", "")
    person.answer("target-in-flight", "8")
    person.answer("serving-min [1]", "3")
    person.answer("ttft [1]", "0.5")
    code, _ = person.leave()
    assert code == 2
    end = person.seen.replace("\r", "").rpartition("error: ")[2]
    assert "spec.maxSeats: floors and spares need" in end
    assert end.endswith(
        "your answers as arguments, to give again with a change: --shared-fleet '' --engine VLLM"
        " --target-in-flight 8 --serving-min 3 --ttft 0.5\n"
    )
