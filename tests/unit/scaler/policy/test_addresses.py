"""Addresses of servers: what is refused, that no secret is repeated, and what was probably meant."""

import pytest

from scaler.errors import PolicyError
from scaler.policy.addresses import host_and_port, host_port_problem, url_problem
from scaler.policy.compile import check
from scaler.policy.document import parse_documents

HEAD = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 8}]
  signals:
"""
PROMETHEUS = "    - {name: late, type: Prometheus, query: up, measures: Requests, %s}\n"
REDIS = "    - {name: jobs, type: RedisList, key: jobs, server: %s}\n"


def fault_of(signal: str) -> tuple[str, str, str]:
    (document,) = parse_documents(HEAD + signal, "f.yaml")
    with pytest.raises(PolicyError) as raised:
        check(document)
    (fault,) = raised.value.faults
    return fault.path.removeprefix("spec.signals[0]."), fault.message, fault.hint


@pytest.mark.parametrize(
    ("address", "taken_apart"),
    [
        ("redis.serving:6379", ("redis.serving", 6379)),
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1.2.3.4]:6379", ("fe80::1.2.3.4", 6379)),
    ],
)
def test_an_address_is_taken_apart(address: str, taken_apart: tuple[str, int]) -> None:
    assert host_port_problem(address) is None
    assert host_and_port(address) == taken_apart
    (document,) = parse_documents(HEAD + REDIS % f'{{addresses: ["{address}"]}}', "f.yaml")
    check(document)


@pytest.mark.parametrize(
    ("address", "message", "hint"),
    [
        ("a:99999", "there is no port 99999", "a port is a number from 1 to 65535"),
        ("a:0", "there is no port 0", "a port is a number from 1 to 65535"),
        ("redis://a:1", 'must be HOST:PORT, is "redis://a:1"', "write a:1"),
        ("rediss://a:1/2", 'must be HOST:PORT, is "rediss://a:1/2"', "write a:1"),
        (
            "::1:6379",
            'must be HOST:PORT, is "::1:6379"',
            "an IPv6 address stands in brackets before its port: [::1]:6379",
        ),
        ("redis.serving", 'must be HOST:PORT, is "redis.serving"', "add the port: redis.serving:6379"),
        ("a b:1", 'must be HOST:PORT, is "a b:1"', "for example redis.serving:6379, or [::1]:6379"),
        (
            "user:secret@a:1",
            "must be HOST:PORT, and holds who asks as well",
            "write HOST:PORT alone: username and passwordFile say who asks",
        ),
    ],
)
def test_what_is_no_host_and_port_is_refused_with_its_mend(address: str, message: str, hint: str) -> None:
    found = fault_of(REDIS % f'{{addresses: ["{address}"]}}')
    assert found == ("server.addresses[0]", message, hint)


def test_what_is_no_address_is_not_taken_apart() -> None:
    with pytest.raises(ValueError, match="'redis' is not HOST:PORT"):
        host_and_port("redis")


def test_an_address_in_place_of_the_server_is_put_where_it_belongs() -> None:
    path, message, hint = fault_of(REDIS % "redis:6379")
    assert (path, message) == ("server", 'must be a mapping, is "redis:6379"')
    assert hint.startswith('write {addresses: ["redis:6379"]}; it has the keys mode, addresses, ')


@pytest.mark.parametrize(
    "address",
    ["http://p", "https://p:9090", "http://[::1]:9090/prometheus", "http://prometheus.monitoring:9090/a@b"],
)
def test_an_address_of_a_server_is_right(address: str) -> None:
    assert url_problem(address) is None
    (document,) = parse_documents(HEAD + PROMETHEUS % f'server: "{address}"', "f.yaml")
    check(document)


@pytest.mark.parametrize(
    ("address", "message", "hint"),
    [
        (
            "http://user:secret@p:9090",
            "holds a user name or a password",
            "remove it: authorization says who asks, with the secret in a file",
        ),
        (
            "https://token@p",
            "holds a user name or a password",
            "remove it: authorization says who asks, with the secret in a file",
        ),
        ("p:9090", 'must be an http or https address, is "p:9090"', "write http://p:9090"),
        ("http://p:99999", "there is no port 99999", "a port is a number from 1 to 65535"),
        (
            "ftp://p",
            'must be an http or https address, is "ftp://p"',
            "for example http://prometheus.monitoring:9090",
        ),
        (
            "http://[::1",
            'must be an http or https address, is "http://[::1"',
            "for example http://prometheus.monitoring:9090",
        ),
        (
            "http://",
            'must be an http or https address, is "http://"',
            "for example http://prometheus.monitoring:9090",
        ),
    ],
)
def test_what_is_no_address_of_a_server_is_refused_with_its_mend(
    address: str, message: str, hint: str
) -> None:
    assert fault_of(PROMETHEUS % f'server: "{address}"') == ("server", message, hint)


@pytest.mark.parametrize(
    "signal",
    [
        PROMETHEUS % 'server: "http://user:secret@p:9090"',
        PROMETHEUS % 'server: "user:secret@p:9090"',
        PROMETHEUS % 'server: "http://user:secret@p:x"',
        REDIS % '{addresses: ["redis://user:secret@a:1"]}',
        REDIS % '{addresses: ["user:secret@a"]}',
    ],
)
def test_no_fault_repeats_a_secret(signal: str) -> None:
    assert "secret@" not in " ".join(fault_of(signal))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            'server: "http://p", tls: {caFile: /ca.pem}',
            ("tls", "is given, and server is an http address, which shows no certificate"),
        ),
        (
            'server: "https://p", tls: {caFile: /ca.pem, skipVerify: true}',
            ("tls.caFile", "is given, and skipVerify takes any certificate"),
        ),
    ],
)
def test_what_would_be_ignored_is_refused(keys: str, expected: tuple[str, str]) -> None:
    assert fault_of(PROMETHEUS % keys)[:2] == expected
