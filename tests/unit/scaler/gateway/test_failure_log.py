from structlog.testing import capture_logs

from scaler.gateway.failure_log import FailureLog, Seldom
from scaler.gateway.routes import Endpoint, Failure
from warmpool.seats import PolicyName, SeatName


def test_one_event_of_a_kind_passes_in_a_while_and_the_next_tells_of_those_kept_back() -> None:
    seldom = Seldom(1.0)
    assert [seldom.passes("x", at) for at in (5.0, 5.5, 5.9, 6.0)] == [True, False, False, True]
    assert (seldom.kept_back("x"), seldom.kept_back("x")) == (2, 0)
    assert seldom.passes("y", 6.0)


def test_a_resident_that_is_left_alone_is_logged_once_in_a_while() -> None:
    failures = FailureLog()
    chat = PolicyName("chat")
    residents = [
        Endpoint(seat=SeatName(name), uid=name, policy=chat, url=f"http://{name}", slots=1) for name in "ab"
    ]
    with capture_logs() as logs:
        for resident in (*residents, *residents):
            failures.left_alone(resident, Failure.SILENT, 5.0)
    assert [(each["seat"], each["url"], each["failure"], each["log_level"]) for each in logs] == [
        ("a", "http://a", "Silent", "warning"),
        ("b", "http://b", "Silent", "warning"),
    ]
