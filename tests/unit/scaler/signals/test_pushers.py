import pytest

from scaler.errors import PolicyError
from scaler.signals.pushers import ANYONE, OVER_REDIS, NotAllowed, apart, parse_tokens
from scaler.signals.sample import Kind

FILE = """\
# who pushes here
gateway:eu   one
gateway:eu   one-too

queue        two
queue        three
agent:seats  four
five
"""


def test_a_line_gives_a_token_its_role_and_name() -> None:
    found = parse_tokens(FILE, "tokens")
    assert {token: pusher.name for token, pusher in found.items()} == {
        "one": "gateway:eu",
        "one-too": "gateway:eu",
        "two": "queue",
        "three": "queue 2",
        "four": "agent:seats",
        "five": "token",
    }


@pytest.mark.parametrize(
    ("token", "kinds", "first_tokens", "reports"),
    [
        pytest.param("one", {Kind.GATEWAY}, True, False, id="gateway"),
        pytest.param("two", {Kind.QUEUE}, False, False, id="queue"),
        pytest.param("four", set(), False, True, id="agent"),
        pytest.param("five", {Kind.GATEWAY, Kind.QUEUE}, True, False, id="without a role"),
    ],
)
def test_a_role_says_what_its_holder_may_do(
    token: str, kinds: set[Kind], *, first_tokens: bool, reports: bool
) -> None:
    pusher = parse_tokens(FILE, "tokens")[token]
    assert (set(pusher.kinds), pusher.first_tokens, pusher.reports) == (kinds, first_tokens, reports)


@pytest.mark.parametrize(
    ("token", "kind", "instance", "problem"),
    [
        pytest.param("one", Kind.GATEWAY, "eu", "", id="its own name"),
        pytest.param("one", Kind.GATEWAY, "eu-7f9c", "", id="one of its names"),
        pytest.param("one", Kind.GATEWAY, "europe", "are called eu or eu-…", id="not one of its names"),
        pytest.param("one", Kind.QUEUE, "eu", "as Gateway, and not as a Queue", id="another kind"),
        pytest.param("two", Kind.QUEUE, "jobs", "", id="any name without one of its own"),
        pytest.param("two", Kind.QUEUE, "eu-7f9c", "another pusher's own", id="another's name"),
        pytest.param("two", Kind.GATEWAY, "gw", "as Queue, and not as a Gateway", id="a queue as a gateway"),
        pytest.param("four", Kind.QUEUE, "seats", "as nobody who pushes", id="an agent"),
        pytest.param("five", Kind.GATEWAY, "gw", "", id="no role"),
        pytest.param("five", Kind.QUEUE, "eu", "another pusher's own", id="no role, another's name"),
        pytest.param("five", Kind.QUEUE, "seats", "", id="an agent's name is no instance's"),
    ],
)
def test_what_a_sample_may_say_of_its_sender(token: str, kind: Kind, instance: str, problem: str) -> None:
    pusher = apart(parse_tokens(FILE, "tokens"))[token]
    if not problem:
        pusher.check(kind, instance)
        return
    with pytest.raises(NotAllowed) as refusal:
        pusher.check(kind, instance)
    assert problem in str(refusal.value)


def test_nobody_is_believed_to_be_a_gateway_over_redis() -> None:
    OVER_REDIS.check(Kind.QUEUE, "worker")
    with pytest.raises(NotAllowed):
        OVER_REDIS.check(Kind.GATEWAY, "gw")


def test_a_plain_token_may_be_anyone() -> None:
    for kind in Kind:
        ANYONE.check(kind, "gw")


def test_all_faults_of_a_file_are_told_at_once_and_no_token_is_shown() -> None:
    text = "gateway:eu secret-1\n  gatway secret-2\nqueue: secret-3\nqueue secret-1\na b secret-4\n"
    with pytest.raises(PolicyError) as error:
        parse_tokens(text, "tokens")
    assert [str(fault).splitlines()[0] for fault in error.value.faults] == [
        "tokens:2:3: the first word is no role",
        "tokens:3:1: queue's name is none",
        "tokens:4:1: this token stands in an earlier line too",
        "tokens:5:1: 3 words stand here",
    ]
    assert "secret" not in str(error.value)
