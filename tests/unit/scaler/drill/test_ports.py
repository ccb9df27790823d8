"""Ports that a person chose."""

import socket

import pytest

from scaler.drill.ports import HOST, check_free, listen
from scaler.errors import UserError


def test_zero_takes_a_free_port() -> None:
    with listen(0, "--metrics-port") as listener:
        assert listener.getsockname()[0] == HOST
        assert listener.getsockname()[1] > 0


def test_a_port_in_use_is_named_with_the_option_that_chooses_another() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"can't listen on {HOST}:{port}: .*in use") as caught:
            check_free(port, "--controller-port")
    assert "--controller-port N" in caught.value.hint


def test_a_port_that_was_found_free_is_free_afterwards() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    check_free(port, "--controller-port")
    listen(port, "--controller-port").close()


def test_a_port_that_is_chosen_later_needs_no_check() -> None:
    check_free(0, "--controller-port")
