"""What can go wrong in the controller and its tools, as a tree by what the caller can do about it."""


class ScalerError(Exception):
    """Base of all errors that `scaler` raises."""


class UserError(ScalerError):
    """Input that a person can mend: shown without a traceback, exit code 2.

    Attributes:
        hint: what to do about it; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PolicyError(UserError):
    """Policy or scenario files that can't be used; holds every fault that was found.

    Attributes:
        faults: all of them, in the order of the files.
    """

    def __init__(self, faults: "tuple[PolicyFault, ...]") -> None:
        super().__init__("\n\n".join(str(fault) for fault in faults))
        self.faults = faults


class PolicyFault:
    """One fault in a policy file, with its place and its mend.

    Attributes:
        file, line, column: where (1-based).
        path: dotted path in the document, such as `spec.fleets[0].targetInFlight`; empty for the whole document.
        message: what is wrong.
        hint: what to do about it; may be empty.
    """

    __slots__ = ("column", "file", "hint", "line", "message", "path")

    def __init__(self, *, file: str, line: int, column: int, path: str, message: str, hint: str = "") -> None:
        self.file = file
        self.line = line
        self.column = column
        self.path = path
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, str | int]:
        """Write it as JSON says it everywhere: `policy validate -o json`, the controller's API, events."""
        return {name: getattr(self, name) for name in ("file", "line", "column", "path", "message", "hint")}

    def __str__(self) -> str:
        """Render as `file:line:col: path: message`, a blank line, `hint: …`."""
        place = f"{self.file}:{self.line}:{self.column}: "
        where = f"{self.path}: " if self.path else ""
        text = f"{place}{where}{self.message}"
        return f"{text}\n\nhint: {self.hint}" if self.hint else text


class SignalError(ScalerError):
    """A signal can't be read or believed; the law falls back, nothing crashes."""


class SampleRejected(SignalError):
    """A pushed sample is malformed; it was counted and changed nothing."""


class ClusterError(ScalerError):
    """The cluster didn't do what was asked; the next tick looks again."""


class Conflict(ClusterError):
    """The object has changed since it was read; read it again."""


class NotFound(ClusterError):
    """The object is gone."""


class Unreachable(ClusterError):
    """No answer within the deadline; whether the change took place is unknown."""


class LeadershipLost(ScalerError):
    """The term is over: stop acting at once."""
