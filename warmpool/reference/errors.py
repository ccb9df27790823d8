"""What can go wrong in the reference engine, as a tree by what the caller can do about it."""

from http import HTTPStatus


class ReferenceEngineError(Exception):
    """Base of all errors that `warmpool.reference` raises."""


class CannotStart(ReferenceEngineError):
    """The process can't serve as it was asked to; `hint` says what to change. It exits with code 2."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UnsupportedModel(CannotStart):
    """The checkpoint is of a kind that this engine doesn't compute."""


class NotEnoughMemory(CannotStart):
    """Weights or KV memory don't fit. At the start the process ends; on a wake-up it stays paused and says so."""


class NotEnoughHostMemory(ReferenceEngineError):
    """The host can't take parked weights; `hint` says what to change. They stay where they are, and the engine as it is."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class WeightsDamaged(ReferenceEngineError):
    """Weights that came back from host memory aren't those that were parked. The engine computes nothing with them."""


class BadCheckpoint(CannotStart):
    """The checkpoint can't be read, or its tensors aren't those that its config.json promises."""


class RequestRejected(ReferenceEngineError):
    """A request that can't be answered. The client has to change it, or to come back later.

    Attributes:
        status: the HTTP status.
        kind: the error's `type`, spelled as vLLM spells it.
        param: the request's field that is at fault, if there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = int(status)
        self.kind = kind
        self.param = param


class WrongEngineState(ReferenceEngineError):
    """An order that makes no sense in the engine's present state, such as giving back KV memory while it runs."""


class RankLost(ReferenceEngineError):
    """A rank of a tensor-parallel group has ended or failed. The others can't compute without it: the engine ends, and is started anew."""


class EngineStopped(ReferenceEngineError):
    """The engine has stopped or is stopping: nothing more will be computed."""
