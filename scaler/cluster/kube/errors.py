"""What an API server's refusals mean to the caller, below `scaler.errors.ClusterError`."""

from scaler.errors import ClusterError, Conflict, Unreachable


class AlreadyExists(Conflict):
    """There is an object of this name; read it."""


class Forbidden(ClusterError):
    """The credentials don't allow it; nothing changes until a person mends the Role or the credentials."""


class Rejected(ClusterError):
    """The server understood and refuses; the same request will be refused again."""


class Expired(ClusterError):
    """The version is no longer known; list anew."""


class Throttled(Unreachable):
    """The server asks to come back later; nothing was changed.

    Attributes:
        retry_after: after how many seconds.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Withheld(Conflict):
    """We don't write this now, and have sent nothing; the message says why, and what would have to be otherwise."""
