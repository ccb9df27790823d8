"""The bearer tokens of those who push to a controller: from the environment, and from a file that may change meanwhile."""

import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from scaler.errors import UserError
from scaler.signals.pushers import ANYONE, Pusher, apart, own_names, parse_tokens

log = structlog.get_logger(__name__)

WANTED: Final = (
    "EMBERPOOL_SIGNAL_TOKEN or EMBERPOOL_AGENT_TOKEN of the controller, or one of its file of --push-tokens"
)
"""What those who push may show, in words."""
_LOOK_SECONDS: Final = 1.0
"""A changed file is in force after this long."""
_LARGEST_BYTES: Final = 1024 * 1024
_Stamp = tuple[int, int, int]


class PushTokens:
    """Knows who shows which token.

    Args:
        plain: tokens without a role, by what they are called; empty ones don't count.
        file: file with more of them (`scaler.signals.pushers`); None: there is none. One that gets broken while it is in
            force changes nothing.
        monotonic: tells when to look at it again.

    Attributes:
        names: what instances of named pushers are called; nobody else may push as these.

    Raises:
        UserError: the file can't be read at the start, or isn't one of tokens.
    """

    def __init__(
        self,
        plain: Mapping[str, str],
        file: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plain = {token: replace(ANYONE, name=name) for name, token in plain.items() if token}
        self._file = file
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._stamp: _Stamp | None = None
        self._problem = ""
        self._put({})
        if file is not None:
            self._read(file)

    def shown_by(self, request: web.Request) -> Pusher | None:
        """Return who sends a request; None if it shows no token of ours."""
        self._look()
        shown, found = request.headers.get("Authorization", "").encode(errors="replace"), None
        for header, pusher in self._shown.items():  # all of them: how long it takes tells nothing
            if hmac.compare_digest(shown, header):
                found = pusher
        return found

    def _look(self) -> None:
        now = self._monotonic()
        if self._file is None or now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        problem = ""
        try:
            self._read(self._file)
        except UserError as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("the tokens in force stay", file=str(self._file), problem=problem)
        self._problem = problem

    def _read(self, file: Path) -> None:
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            with file.open("rb") as opened:
                content = opened.read(_LARGEST_BYTES + 1)
        except OSError as error:
            raise UserError(
                f"{file} can't be read: {(error.strerror or str(error)).lower()}",
                hint="--push-tokens wants a file with a line `role[:name] token` for each token",
            ) from error
        if len(content) > _LARGEST_BYTES:
            raise UserError(f"{file} has more than {_LARGEST_BYTES} bytes", hint="is it the file of tokens?")
        try:
            listed = parse_tokens(content.decode(), str(file))
        except UnicodeDecodeError as error:
            raise UserError(f"{file} is no UTF-8", hint="is it the file of tokens?") from error
        self._put(listed)

    def _put(self, listed: Mapping[str, Pusher]) -> None:
        """Put the file's tokens in force beside the plain ones."""
        pushers = apart({**self._plain, **listed})
        self._shown = {f"Bearer {token}".encode(): pusher for token, pusher in pushers.items()}
        self.names = own_names(pushers.values())
