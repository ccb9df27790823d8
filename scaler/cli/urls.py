"""Addresses of servers, as people write them."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from scaler.errors import UserError

_PORTS: Final[Mapping[str, int]] = {"a controller": 9080, "a gateway": 8000, "a Prometheus": 9090}
"""Whose URL → the port that it has where nobody has chosen another."""


def base_url(text: str, of: str = "a controller") -> str:
    """Return a server's base URL without its last slash.

    Raises:
        UserError: it isn't one.
    """
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{text!r} is no URL of {of}", hint=f"write it as http://host:{_PORTS[of]}")
    return text.rstrip("/")
