"""The bearer keys of a small installation: who shows none of them is not let in. PURE.

Large installations have something in front of the gateway that knows clients, or keys on the engines; then there is no list here,
and whatever a client shows goes on to the engine.
"""

import hashlib
from collections.abc import Iterable

from scaler.gateway.messages import RequestRefused
from scaler.gateway.observe import Outcome


class Keys:
    """A set of keys.

    Args:
        keys: the keys, as clients show them.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = frozenset(_digest(key) for key in keys)

    def __len__(self) -> int:
        return len(self._digests)

    def check(self, authorization: str | None) -> None:
        """Let a request in.

        Only digests are compared, so that the time that it takes tells nothing of a key.

        Args:
            authorization: its header, or None.

        Raises:
            RequestRefused: it shows no key of the list.
        """
        scheme, _, shown = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and _digest(shown.strip()) in self._digests:
            return
        message = "This gateway wants a key that it knows, as `Authorization: Bearer KEY`."
        raise RequestRefused(401, message, code="invalid_api_key", outcome=Outcome.UNAUTHORIZED, close=True)


def parse_keys(text: str) -> tuple[str, ...]:
    """Read a list of keys: one a line; empty lines and those that begin with # don't count."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
