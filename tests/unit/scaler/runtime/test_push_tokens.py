import os
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from scaler.errors import UserError
from scaler.runtime.api import Intake
from scaler.runtime.push_tokens import PushTokens

PLAIN = {"EMBERPOOL_AGENT_TOKEN": "agents' own", "EMBERPOOL_SIGNAL_TOKEN": "plain", "UNSET": ""}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shows(token: str | None) -> web.Request:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return make_mocked_request("POST", "/", headers=headers)


def who(tokens: PushTokens, token: str | None) -> str | None:
    pusher = tokens.shown_by(shows(token))
    return None if pusher is None else pusher.name


def write(file: Path, text: str, at: float) -> None:
    file.write_text(text, "utf-8")
    os.utime(file, (at, at))


@pytest.mark.parametrize(
    ("token", "name"),
    [
        pytest.param("plain", "EMBERPOOL_SIGNAL_TOKEN", id="a plain one"),
        pytest.param("agents' own", "EMBERPOOL_AGENT_TOKEN", id="the agents' own"),
        pytest.param("listed", "queue:jobs", id="one of the file"),
        pytest.param("another", None, id="another"),
        pytest.param("", None, id="an empty one"),
        pytest.param("clé", None, id="one beyond ASCII"),
        pytest.param(None, None, id="none"),
    ],
)
def test_a_token_tells_who_shows_it(tmp_path: Path, token: str | None, name: str | None) -> None:
    file = tmp_path / "tokens"
    file.write_text("queue:jobs listed\n", "utf-8")
    tokens = PushTokens(PLAIN, file)
    assert who(tokens, token) == name
    assert tokens.names == {"jobs"}


def test_a_changed_file_is_in_force_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    file, clock = tmp_path / "tokens", Clock()
    write(file, "queue:jobs one\n", 1e9)
    tokens = PushTokens(PLAIN, file, clock)
    write(file, "queue:jobs two\n", 2e9)
    assert (who(tokens, "one"), who(tokens, "two")) == ("queue:jobs", None)  # it isn't time to look
    clock.now = 1.0
    assert (who(tokens, "one"), who(tokens, "two")) == (None, "queue:jobs")
    for at, text in ((3e9, "gatway secret\n"), (4e9, "")):
        clock.now += 1.0
        with capture_logs() as logs:
            if text:
                write(file, text, at)
            else:
                file.unlink()
            assert (who(tokens, "two"), who(tokens, "plain")) == ("queue:jobs", "EMBERPOOL_SIGNAL_TOKEN")
        assert [line["event"] for line in logs] == ["the tokens in force stay"]
        assert "secret" not in str(logs)


@pytest.mark.parametrize(
    "content",
    [None, b"queue: x\n", b"\xff\xfe\n", b"x" * 2_000_000],
    ids=["missing", "faulty", "no text", "huge"],
)
def test_a_file_that_is_none_is_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as error:
        PushTokens(PLAIN, file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("token", "may"),
    [
        pytest.param("agents' own", True, id="the agents' own"),
        pytest.param("listed", True, id="one with that role"),
        pytest.param("waiting", False, id="one with another role"),
        pytest.param("plain", False, id="one of those who push"),
        pytest.param(None, False, id="none"),
    ],
)
def test_who_may_report_a_seat(tmp_path: Path, token: str | None, *, may: bool) -> None:
    file = tmp_path / "tokens"
    file.write_text("agent listed\nqueue waiting\n", "utf-8")
    intake = Intake(report=lambda _: None, token="agents' own", tokens=PushTokens(PLAIN, file))
    assert intake.takes(shows(token)) is may
