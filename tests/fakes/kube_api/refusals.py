"""What the server says when it refuses: a Status object with a code and a reason."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kube_api.kinds import Kind


class Refusal(Exception):
    """A request is answered with a Status of failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = dict(headers or {})

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = dict(self.details)
        return {**body, "code": self.code}


def _about(kind: Kind, name: str, *, plural: bool) -> dict[str, str]:
    group = {"group": kind.group} if kind.group else {}
    return {**({"name": name} if name else {}), **group, "kind": kind.plural if plural else kind.kind}


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(
        404, "NotFound", f'{kind.qualified} "{name}" not found', details=_about(kind, name, plural=True)
    )


def already_exists(kind: Kind, name: str) -> Refusal:
    return Refusal(
        409,
        "AlreadyExists",
        f'{kind.qualified} "{name}" already exists',
        details=_about(kind, name, plural=True),
    )


def modified(kind: Kind, name: str) -> Refusal:
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again",
        details=_about(kind, name, plural=True),
    )


def precondition(kind: Kind, name: str, why: str) -> Refusal:
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.kind} "{name}": {why}',
        details=_about(kind, name, plural=False),
    )


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def unavailable(message: str) -> Refusal:
    return Refusal(503, "ServiceUnavailable", message)


def unreadable(kind: Kind, why: str) -> Refusal:
    return bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


REQUIRED, BAD_VALUE, FORBIDDEN = "FieldValueRequired", "FieldValueInvalid", "FieldValueForbidden"
Cause = tuple[str, str, str]
"""Reason, field, message."""


def invalid(
    kind: str,
    name: str,
    causes: Sequence[Cause],
    *,
    group: str = "",
    repeats: Mapping[str, int] | None = None,
) -> Refusal:
    """422 with all faults of an object.

    Args:
        kind: as the message names it.
        name: the object's.
        causes: the faults.
        group: the kind's group.
        repeats: field → how often the details tell its fault.
    """
    told = [f"{field}: {message}" for _, field, message in causes]
    title = f"{kind}.{group}" if group else kind
    listed = [cause for cause in causes for _ in range((repeats or {}).get(cause[1].partition("[")[0], 1))]
    return Refusal(
        422,
        "Invalid",
        f'{title} "{name}" is invalid: {told[0] if len(told) == 1 else "[" + ", ".join(told) + "]"}',
        details={
            "name": name,
            **({"group": group} if group else {}),
            "kind": kind,
            "causes": [{"reason": reason, "message": text, "field": field} for reason, field, text in listed],
        },
    )


def rejected_patch() -> Refusal:
    """422 for a JSON patch whose test fails or whose path is missing."""
    return Refusal(
        422, "Invalid", "the server rejected our request due to an error in our request", details={}
    )


def expired(asked: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {asked} ({oldest})")


def forbidden(kind: Kind, name: str, user: str, verb: str, namespace: str) -> Refusal:
    subject = f'{kind.qualified} "{name}"' if name else kind.qualified
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    return Refusal(
        403,
        "Forbidden",
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{kind.plural}" in API group "{kind.group}" {where}',
        details=_about(kind, name, plural=True),
    )
