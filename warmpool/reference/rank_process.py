"""One of the other ranks of a tensor-parallel group, as its own process: carries out what rank 0 orders, in that order.

It computes what rank 0 computes, on its own parts, and chooses no tokens. It ends with rank 0, and when an order fails that nobody answers.
"""

import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

from warmpool.reference.errors import ReferenceEngineError
from warmpool.reference.identity import ownership_of
from warmpool.reference.leading import rule_from_json, rule_to_json
from warmpool.reference.opening import OpenedModel, open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.rank_wire import Lines, Member, Message, error_to_json, options_from_json
from warmpool.reference.runner import Ground, TorchRunner, load, prepare
from warmpool.reference.scheduler import Move
from warmpool.reference.startup import Phase

_log = logging.getLogger(__name__)

ExitCode = int
_FAILED: Final = 1


def run(orders: int) -> ExitCode:
    """Carry out orders until rank 0 is gone, or says that it is over.

    Args:
        orders: descriptor of the socket.

    Returns:
        0, or 1 if an order failed that the group can't go on without.
    """
    # Whoever ends an engine tells rank 0, which lets its requests end first.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    lines = Lines(socket.socket(fileno=orders))
    rank = _Rank(lines)
    try:
        for order in _orders(lines):
            if not rank.carry_out(order):
                break
    except OSError:
        return 0  # rank 0 is gone: it needs no answer
    except Exception as error:  # noqa: BLE001 (whatever it was: the group ends with it)
        _log.critical("rank %d failed", rank.number, exc_info=error)
        lines.send({"error": error_to_json(error)})
        return _FAILED
    return 0


def _orders(lines: Lines) -> Iterator[Message]:
    while told := lines.receive():
        yield from told


class _Quiet:
    """The phases of a rank's start are rank 0's to tell."""

    def done(self, phase: Phase, **facts: object) -> None:
        """Take no notice."""


class _Rank:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._member = Member(rank=0, size=0, meeting=-1)
        self._options: ModelOptions | None = None
        self._opened: OpenedModel | None = None
        self._ground: Ground | None = None
        self._runner: TorchRunner | None = None
        self._answered: dict[str, Callable[[Message], Message | None]] = {
            "options": self._take_options,
            "prepare": lambda _: self._prepare(),
            "load": lambda _: self._load(),
            "warm": self._warm,
            "takeKv": lambda _: self.runner.take_kv(self._send),
            "giveBackKv": lambda _: self.runner.give_back_kv(),
            "park": lambda _: self.runner.park(),
            "unpark": lambda _: self.runner.unpark(),
        }
        self._unanswered: dict[str, Callable[[Message], object]] = {
            "prefill": lambda told: self.runner.prompt_logits(told["tokens"], told["most"], told["place"]),
            "decode": lambda told: self.runner.step_logits(told["tokens"], told["lengths"]),
            "free": lambda told: self.runner.free(told["place"]),
            "move": lambda told: self.runner.move(Move(told["source"], told["target"], told["length"])),
        }

    @property
    def number(self) -> int:
        """Its number, once it has been told."""
        return self._member.rank

    @property
    def runner(self) -> TorchRunner:
        """What computes."""
        assert self._runner is not None
        return self._runner

    def carry_out(self, order: Message) -> bool:
        """Carry out an order; whether there may be more."""
        what = order["op"]
        if what == "end":
            if self._runner is not None:
                self._runner.abort()
            return False
        if what in self._unanswered:
            self._unanswered[what](order)
            return True
        try:
            done = self._answered[what](order) or {}
        except ReferenceEngineError as error:  # rank 0 decides what becomes of it
            self._send(error=error_to_json(error))
        else:
            self._send(done=done)
        return True

    def _send(self, **message: object) -> None:
        self._lines.send_now(lambda: {**message, **self._told_figures()})

    def _told_figures(self) -> Message:
        return {} if self._runner is None else {"figures": self._runner.figures.as_json()}

    # ------------------------------------------------------------------ orders

    def _take_options(self, order: Message) -> None:
        self._member = Member(**order["member"])
        self._options = options_from_json(order["options"])

    def _prepare(self) -> None:
        options = self._told_options()
        self._opened = open_model(options)
        self._ground = prepare(options, _Quiet(), self._member)

    def _load(self) -> Message:
        assert self._ground is not None
        assert self._opened is not None
        options, opened = self._told_options(), self._opened
        loaded = load(opened, options, self._ground, _Quiet())
        runner = TorchRunner(loaded.parts, opened.tokenizer, ownership_of([loaded.digest], loaded.dtype))
        self._runner = runner
        rule = runner.row_rule(options)
        return {
            "digest": loaded.digest,
            "facts": loaded.facts,
            "rule": rule_to_json(rule),
            "weightsBytes": runner.weights_bytes,
            "kvBytes": runner.kv_bytes,
            "cannotPark": runner.cannot_park,
        }

    def _warm(self, order: Message) -> None:
        options = self._told_options()
        self.runner.warm(options, rule_from_json(order["rule"]))
        self.runner.capture(options)

    def _told_options(self) -> ModelOptions:
        assert self._options is not None
        return self._options
