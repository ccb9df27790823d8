"""Addresses of servers, as people write them."""

from urllib.parse import urlsplit

from scaler.errors import UserError


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
        port = 9080 if of == "a controller" else 9090
        raise UserError(f"{text!r} is no URL of {of}", hint=f"write it as http://host:{port}")
    return text.rstrip("/")
