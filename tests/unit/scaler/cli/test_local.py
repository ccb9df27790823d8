"""`emberpool local`: what its arguments become."""

from pathlib import Path

import pytest

from scaler.cli.app import main
from scaler.cli.gateway import settings_of
from scaler.cli.local import name_of, parse_checkpoints
from scaler.errors import UserError
from scaler.gateway.settings import GatewaySettings


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("Llama-3.1-8B", "llama-3-1-8b"),
        ("phi_4 mini", "phi-4-mini"),
        ("___", ""),
        ("a" * 70, "a" * 63),
    ],
)
def test_a_directory_gives_its_name(directory: str, expected: str) -> None:
    assert name_of(Path("/models") / directory) == expected


def test_checkpoints_with_and_without_names(tmp_path: Path) -> None:
    (tmp_path / "Llama-8B").mkdir()
    (tmp_path / "x=y").mkdir()
    assert parse_checkpoints(
        [str(tmp_path / "Llama-8B"), f"chat={tmp_path / 'x=y'}", str(tmp_path / "x=y")]
    ) == {
        "llama-8b": tmp_path / "Llama-8B",
        "chat": tmp_path / "x=y",
        "x-y": tmp_path / "x=y",
    }


def test_a_trailing_slash_and_a_dot_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "phi").mkdir()
    monkeypatch.chdir(tmp_path / "phi")
    assert list(parse_checkpoints([".", f"b={tmp_path}/phi/"])) == ["phi", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(["chat={0}/none"], "there is no directory {0}/none", id="no-directory"),
        pytest.param(["{0}/file"], "there is no directory {0}/file", id="file"),
        pytest.param(["a={0}/one", "a={0}/two"], "two checkpoints are called a", id="same-name"),
        pytest.param(["{0}/___"], "no name can be made from '{0}/___'", id="no-name"),
        pytest.param(["={0}/one"], "no name can be made from '={0}/one'", id="empty-name"),
    ],
)
def test_what_cant_be_a_checkpoint(tmp_path: Path, given: list[str], message: str) -> None:
    for name in ("one", "two", "___"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as raised:
        parse_checkpoints([text.format(tmp_path) for text in given])
    assert str(raised.value) == message.format(tmp_path)
    assert "NAME=DIR" in raised.value.hint.replace("[NAME=]DIR", "NAME=DIR")


# ------------------------------------------------------------------ the gateway inside


def test_the_gateway_s_settings_have_the_names_of_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of([]) == GatewaySettings()
    monkeypatch.setenv("EMBERPOOL_GATEWAY_ATTEMPTS", "5")
    settings = settings_of(["queue-seconds=30", "tenant-header=X-Tenant", "max-body-mib=2"])
    assert settings.queue.max_age_seconds == 30.0
    assert (settings.tenant_header, settings.max_body_bytes, settings.max_failed_attempts) == (
        "X-Tenant",
        2 * 1024 * 1024,
        5,
    )


@pytest.mark.parametrize("written", ["queue-seconds", "port=8000", "queue_seconds=3", "help=1", "=", ""])
def test_what_is_no_setting_of_the_gateway(written: str) -> None:
    with pytest.raises(UserError, match="is no setting of a gateway") as raised:
        settings_of([written])
    assert "queue-seconds" in raised.value.hint
    assert "metrics-port" not in raised.value.hint


def test_a_value_that_no_setting_can_have_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(("local", "--checkpoint", f"chat={tmp_path}", "--gateway", "queue-seconds=soon")) == 2
    assert "--queue-seconds" in capsys.readouterr().err


# ------------------------------------------------------------------ two listeners on one port


@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("arguments", "one", "other"),
    [
        (["--gateway-port", "9080"], "--controller-port", "--gateway-port"),
        (["--gateway-port", "9080", "--gateway-host", "0.0.0.0"], "--controller-port", "--gateway-port"),
        (["--keda-port", "8000"], "--gateway-port", "--keda-port"),
    ],
)
def test_two_listeners_of_one_machine_on_one_port(
    dry_run: list[str],
    arguments: list[str],
    one: str,
    other: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(("local", "--checkpoint", f"chat={tmp_path}", *arguments, *dry_run)) == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"error: {one} and {other} are both " in err


@pytest.mark.parametrize(
    ("command", "one", "other"),
    [
        (
            ["gateway", "--controller", "http://127.0.0.1:1", "--port", "9300", "--metrics-port", "9300"],
            "--port",
            "--metrics-port",
        ),
        (["controller", "--policy", ".", "--agents", ".", "--keda-port", "9080"], "--port", "--keda-port"),
    ],
)
def test_two_listeners_of_other_commands_on_one_port(
    command: list[str],
    one: str,
    other: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMBERPOOL_AGENT_TOKEN", "secret")
    assert main(command) == 2
    assert f"error: {one} and {other} are both " in capsys.readouterr().err
