"""What can go wrong with seats and engines, as a tree by what the caller can do about it."""

from warmpool.engines.capabilities import Verification


class WarmpoolError(Exception):
    """Base of all errors that `warmpool` raises."""


class IllegalTransition(WarmpoolError):
    """A program error: the table of states has no such arrow. Nothing was changed."""


class EngineError(WarmpoolError):
    """An engine didn't do what it was told; the resident is failed and another candidate is taken."""


class EngineTimeout(EngineError):
    """The engine didn't answer before the deadline; its state is unknown."""


class EngineRejected(EngineError):
    """The engine answered, and said no."""


class EngineLost(EngineError):
    """The engine's process is gone or its socket is closed."""


class EngineUnfit(EngineError):
    """The engine lacks something that its role needs (a route, a working pause); it can't be used as it is."""


class EngineLacksRoute(EngineUnfit):
    """The engine has no such route: it was started without it, or its version hasn't got it."""


class EngineContradicted(EngineUnfit):
    """The engine answered that a change was made, and its own state says that it was not.

    Attributes:
        verification: what was asked and answered.
    """

    def __init__(self, verification: Verification) -> None:
        super().__init__(str(verification))
        self.verification = verification


class ProofFailed(EngineError):
    """The engine answered with other tokens than expected; it must not serve."""


class AgentError(WarmpoolError):
    """An order to the agent can't be carried out; `code` says why, as the agent's API names it."""

    code = "Internal"
    status = 500


class AgentBusy(AgentError):
    """Another operation runs on this seat; one at a time. Try again when it ends, or take another seat."""

    code = "Busy"
    status = 409


class StaleEpoch(AgentError):
    """The order comes from a controller term that has been superseded. Stop acting."""

    code = "StaleEpoch"
    status = 409


class WrongState(AgentError):
    """The resident is in a state from which this order makes no sense. Read the state again."""

    code = "WrongState"
    status = 409


class NoRoom(AgentError):
    """The seat's memory isn't enough for what was ordered; the message has the figures. Park something there, or take another seat."""

    code = "NoRoom"
    status = 507


class NeedsWitness(AgentError):
    """Nobody else has witnessed what this resident should answer, and it doesn't prove itself against its own word."""

    code = "NeedsWitness"
    status = 409


class GpuUnfit(AgentError):
    """A GPU of the seat is Suspect or Bad, as its node says; nothing was begun. Take another seat."""

    code = "GpuUnfit"
    status = 409


class UnknownResident(AgentError):
    """The seat has no resident of this policy."""

    code = "UnknownResident"
    status = 404


class DeadlineExceeded(AgentError):
    """The order was begun and didn't end in time; what was begun has been undone where that is possible."""

    code = "DeadlineExceeded"
    status = 504


class BadOrder(AgentError):
    """The order's body or token is not acceptable. Mend the caller."""

    code = "BadOrder"
    status = 400


class StartFailed(WarmpoolError):
    """An engine can't be started as it is configured; the message names what to mend."""
