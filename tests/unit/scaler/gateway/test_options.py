"""What is wrong with the options of `emberpool gateway` is said at once, with the mend."""

from collections.abc import Iterator

import pytest
import structlog
import typer

from scaler.cli.app import main
from scaler.cli.gateway import app


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command sets logging up for its whole process, which here is that of all tests."""
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ([], "nobody was named whose routes to follow", "--kubernetes"),
        (["--kubernetes"], "--kubernetes without --policy", "name the policy files"),
        (["--policy", "x.yaml"], "--policy has no meaning without --kubernetes", "give both"),
        (["-n", "serving"], "--namespace has no meaning without --kubernetes", "give both"),
        (["--kubernetes", "--policy", "/nowhere.yaml"], "/nowhere.yaml", ""),
        (["--tls-key", "x"], "--tls-key without --tls-certificate", "name the certificate's file"),
        (["--controller", "http://c:9080"], "EMBERPOOL_SIGNAL_TOKEN is not set", "the token"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
    hint: str,
) -> None:
    for name in (
        "EMBERPOOL_SIGNAL_TOKEN",
        "EMBERPOOL_AGENT_TOKEN",
        "EMBERPOOL_SERVER",
        "EMBERPOOL_CONTROLLER",
    ):
        monkeypatch.delenv(name, raising=False)
    assert main(["gateway", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert hint in error


@pytest.mark.parametrize(
    ("said", "port"),
    [("tcp://10.0.0.1:8000", 8000), ("tcp://[fd00::1]:80", 8000), ("81", 81), ("0", 0), (None, 8000)],
)
def test_a_service_link_of_kubernetes_is_no_port(
    monkeypatch: pytest.MonkeyPatch, said: str | None, port: int
) -> None:
    """A Service called emberpool-gateway sets the variable of --port in every pod of its namespace."""
    monkeypatch.delenv("EMBERPOOL_GATEWAY_PORT", raising=False)
    if said is not None:
        monkeypatch.setenv("EMBERPOOL_GATEWAY_PORT", said)
    context = typer.main.get_command(app).make_context("gateway", ["--controller", "http://c"])
    assert context.params["port"] == port


@pytest.mark.parametrize("said", ["-1", "65536", "http", ""])
def test_what_is_no_port_is_refused(capsys: pytest.CaptureFixture[str], said: str) -> None:
    assert main(["gateway", "--controller", "http://c", "--port", said]) == 2
    assert "is no port" in capsys.readouterr().err


def test_a_setting_of_the_gateway_inside_that_cannot_be_one_hints_at_a_command_that_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["local", "--gateway", "queue-seconds=soon"]) == 2
    hint = capsys.readouterr().err.rpartition("hint: see ")[2].split()
    assert hint == ["emberpool", "gateway", "--help"]
    assert main(hint[1:]) == 0
