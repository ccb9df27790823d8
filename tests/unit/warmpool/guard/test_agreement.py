"""The middleware's gate is a copy, for its file stands alone. Both gates behave alike, whatever is done to them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from warmpool.guard import Gate, GateClosed, Passage
from warmpool.guard_middleware import CUT_OFF, Refusal
from warmpool.guard_middleware import Gate as Copy


class Inside:
    """A request behind both gates."""

    def __init__(self) -> None:
        self.passage: Passage | None = None
        self.asked = 0
        self.asked_by_the_copy = 0

    def ask(self) -> None:
        self.asked += 1

    def cut(self, refusal: Refusal = CUT_OFF) -> None:
        assert refusal is CUT_OFF
        self.asked_by_the_copy += 1


class BothGates(RuleBasedStateMachine):
    """Does the same to both."""

    @initialize()
    def build(self) -> None:
        self.gate, self.copy = Gate(), Copy()
        self.requests: list[Inside] = []

    @rule()
    def open(self) -> None:
        self.gate.open()
        self.copy.open()

    @rule()
    def close(self) -> None:
        self.gate.close()
        self.copy.close()

    @rule()
    def enter(self) -> None:
        request = Inside()
        try:
            request.passage = self.gate.enter()
        except GateClosed:
            assert not self.copy.enter(request)
        else:
            assert self.copy.enter(request)
            request.passage.on_cancel(request.ask)
            self.requests.append(request)

    @rule(which=st.integers(0, 1000))
    def leave(self, which: int) -> None:
        """Leave, perhaps for the second time."""
        if self.requests:
            request = self.requests[which % len(self.requests)]
            assert request.passage is not None
            self.gate.leave(request.passage)
            self.copy.leave(request)

    @rule()
    def abort(self) -> None:
        assert self.gate.cancel_all() == self.copy.abort()

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "gate"):
            assert (self.gate.is_open, self.gate.in_flight) == (self.copy.is_open, self.copy.in_flight)
            assert all(request.asked == request.asked_by_the_copy <= 1 for request in self.requests)


BothGates.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBothGates = BothGates.TestCase
