"""What a guard is told by its environment, and what it lets nobody tell it."""

from pathlib import Path

import pytest

from warmpool.guard_middleware import Misconfigured, Routes, Settings

TOKEN = "a-token-that-is-long-enough"
PORT = {"EMBERPOOL_GUARD_CONTROL": "127.0.0.1:8101", "EMBERPOOL_GUARD_TOKEN": TOKEN}


def test_a_port_and_a_token_are_enough() -> None:
    settings = Settings.read(PORT)
    assert (settings.control, settings.token, settings.silence_seconds) == ("127.0.0.1:8101", TOKEN, 60.0)
    assert settings.routes.tells("/metrics")


def test_a_socket_needs_no_token() -> None:
    assert Settings.read({"EMBERPOOL_GUARD_CONTROL": "unix:/run/guard.sock"}).token == ""


def test_ipv6_s_loopback_is_one_too() -> None:
    assert Settings.read(PORT | {"EMBERPOOL_GUARD_CONTROL": "[::1]:8101"}).control == "[::1]:8101"


def test_a_token_can_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    environment = {
        "EMBERPOOL_GUARD_CONTROL": "127.0.0.1:1",
        "EMBERPOOL_GUARD_TOKEN_FILE": str(tmp_path / "token"),
    }
    assert Settings.read(environment).token == TOKEN


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"EMBERPOOL_GUARD_CONTROL": ""}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "8101"}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "localhost:8101"}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "127.0.0.1:port"}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "127.0.0.1:65536"}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "127.0.0.1:-1"}, "EMBERPOOL_GUARD_CONTROL"),
        ({"EMBERPOOL_GUARD_CONTROL": "0.0.0.0:8101"}, "loopback"),
        ({"EMBERPOOL_GUARD_CONTROL": "10.0.0.1:8101"}, "loopback"),
        ({"EMBERPOOL_GUARD_CONTROL": "unix:guard.sock"}, "begin with /"),
        ({"EMBERPOOL_GUARD_TOKEN": ""}, "EMBERPOOL_GUARD_TOKEN"),
        ({"EMBERPOOL_GUARD_TOKEN": "fifteen-letters"}, "16 characters"),
        ({"EMBERPOOL_GUARD_TOKEN_FILE": "/no/such/file"}, "can't be read"),
        ({"EMBERPOOL_GUARD_METRICS": "public"}, "EMBERPOOL_GUARD_METRICS"),
        ({"EMBERPOOL_GUARD_SILENCE_SECONDS": "0"}, "EMBERPOOL_GUARD_SILENCE_SECONDS"),
        ({"EMBERPOOL_GUARD_SILENCE_SECONDS": "nan"}, "EMBERPOOL_GUARD_SILENCE_SECONDS"),
        ({"EMBERPOOL_GUARD_SILENCE_SECONDS": "inf"}, "EMBERPOOL_GUARD_SILENCE_SECONDS"),
        ({"EMBERPOOL_GUARD_SILENCE_SECONDS": "a while"}, "EMBERPOOL_GUARD_SILENCE_SECONDS"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        Settings.read(PORT | changed)


@pytest.mark.parametrize(
    "path",
    [
        *("/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/release_kv_cache_memory"),
        *("/release_memory_occupation", "/resume_memory_occupation", "/abort_requests", "/abort_request"),
        *("/reset_prefix_cache", "/flush_cache", "/update_weights", "/is_paused", "/guard", "/guard/open"),
        *("/pause_generation", "/continue_generation", "/init_weight_transfer_engine"),
    ],
)
def test_nobody_can_let_clients_command_the_engine(path: str) -> None:
    with pytest.raises(Misconfigured, match="commands the engine"):
        Routes([path])


@pytest.mark.parametrize(
    "path", ["pooling", "/pool*", "/a/../pause", "/a?b", "/", "/%70ause", "/a//b", "/./a/.."]
)
def test_a_route_that_is_no_plain_path_is_none(path: str) -> None:
    with pytest.raises(Misconfigured):
        Routes([path])


def test_more_routes_can_be_named() -> None:
    routes = Settings.read(PORT | {"EMBERPOOL_GUARD_ROUTES": "/pooling, /v2/rerank"}).routes
    assert routes.guarded("/pooling")
    assert routes.guarded("/v2/rerank")
    assert routes.guarded("/v1/models")
    assert not routes.guarded("/score")


def test_metrics_can_be_kept_to_the_control_side() -> None:
    assert not Settings.read(PORT | {"EMBERPOOL_GUARD_METRICS": "Control"}).routes.tells("/metrics")


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        ("/v1/responses/resp_1-a", True),
        ("/v1/responses/resp_1/cancel", True),
        ("/v1/responses/", False),
        ("/v1/responses/a/b", False),
        ("/v1/responses/a/cancel/", False),
        ("/v1/responses/..", False),
        ("/v1/responses/a\n", False),
    ],
)
def test_one_response_has_a_name_and_nothing_after_it(path: str, *, passes: bool) -> None:
    assert Routes().guarded(path) is passes
