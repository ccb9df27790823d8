import pytest

from scaler.drill.annotations import TOKEN_VARIABLE, grafana
from scaler.drill.child import environment
from scaler.errors import UserError


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://grafana.example:3000", "http://grafana.example:3000"),
        ("https://example.com/grafana/", "https://example.com/grafana"),
        ("http://[::1]:3000/", "http://[::1]:3000"),
    ],
)
def test_an_address_is_taken(url: str, base: str) -> None:
    found = grafana(url, " glsa_x\n")
    assert (found.url, found.token) == (base, "glsa_x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("grafana.example:3000", "not the URL of a server", id="no-scheme"),
        pytest.param("ftp://grafana.example", "not the URL of a server", id="other-scheme"),
        pytest.param("http://", "not the URL of a server", id="no-host"),
        pytest.param("http://[::1", "not the URL of a server", id="broken"),
        pytest.param("http://host:port", "not the URL of a server", id="port-is-no-number"),
        pytest.param("http://admin:hunter2@host", "without user, password", id="password"),
        pytest.param("http://host/?token=hunter2", "without user, password", id="token-in-query"),
    ],
)
def test_a_wrong_address_is_refused_without_a_secret_in_the_error(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        grafana(url, "")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint


def test_a_token_of_two_lines_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError, match=TOKEN_VARIABLE) as caught:
        grafana("http://host", "glsa_x\nevil: header")
    assert "glsa_x" not in str(caught.value)


def test_the_token_is_not_in_the_settings_text() -> None:
    assert "glsa_x" not in repr(grafana("http://host", "glsa_x"))


def test_what_the_drill_starts_does_not_get_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "glsa_x")
    assert TOKEN_VARIABLE not in environment()
    assert "PATH" in environment()
