"""Samples over Redis: those who push publish to a channel, and every controller that listens hears them.

It is the same JSON as over HTTP. What is published while nobody listens is lost, as it should be: the next sample says
what is true then.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, NoReturn

import structlog
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from scaler.errors import SignalError
from scaler.policy.signals import RedisServer
from scaler.signals.failures import one_line
from scaler.signals.redis_client import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    NoCredentials,
    open_redis,
    signal_error,
)

log = structlog.get_logger(__name__)

QUIET_SECONDS: Final = 2.0
"""After this long without a sample the server is asked whether it is still there; as long again it may take to answer."""
_CONNECT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 0.5


class RedisSamples:
    """Listens to one channel; `run` it inside a TaskGroup.

    Args:
        server: the Redis, with its address.
        channel: the channel.
        take: gets the body of each sample; never raises.
        connected: told whenever listening begins or ends.
    """

    def __init__(
        self,
        server: RedisServer,
        channel: str,
        take: Callable[[bytes], None],
        connected: Callable[[bool], None] = lambda _is: None,
    ) -> None:
        self._server = server
        self._channel = channel
        self._take = take
        self._connected = connected
        self._name = (server.addresses or ("",))[0]
        self._failures = 0

    async def run(self) -> None:
        """Listen until cancelled; a server that went away is looked for again, with growing pauses."""
        self._connected(False)
        while True:
            problem = await self._listen()
            self._connected(False)
            if not self._failures:
                log.warning(
                    "no samples over Redis", server=self._name, channel=self._channel, problem=problem
                )
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 8))
            self._failures += 1
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))

    async def _listen(self) -> str:
        """Listen until that ends; return why it did."""
        closing = AsyncExitStack()
        try:
            client = open_redis(self._server, closing)
            assert isinstance(client, Redis)  # the controller's own server is a single one
            pubsub = client.pubsub()
            closing.push_async_callback(pubsub.aclose)
            async with asyncio.timeout(_CONNECT_SECONDS):
                await pubsub.subscribe(self._channel)
            await self._hear(pubsub)
        except TimeoutError:
            return f"{self._name}: no answer"
        except (RedisError, SignalError, OSError) as error:
            return self._problem(error)
        finally:
            with suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await closing.aclose()

    def _problem(self, error: Exception) -> str:
        """Say why there are no samples, with the mend where a setting of the controller's is at fault."""
        text = one_line(str(error))
        match error:
            case NoCredentials():
                return f"{self._name}: {text}"
            case NoPermissionError():
                return f"{self._name} answers: {text}; its ACL has to allow &{self._channel}"
            case AuthenticationError():
                return f"{self._name} answers: {text}; do the user in --redis and --redis-password-file fit?"
        return str(signal_error(error, self._name))

    async def _hear(self, pubsub: Any) -> NoReturn:  # noqa: ANN401 - the library leaves it untyped
        """Hand samples on for ever.

        Raises:
            TimeoutError: the server has gone silent.
            RedisError, OSError: the connection is lost, or the server refuses.
        """
        asked = False
        while True:
            message = await pubsub.get_message(timeout=QUIET_SECONDS)
            if message is not None:
                asked = False
                self._told(message)
                await asyncio.sleep(0)  # a flood that waits in the buffer must not keep the loop to itself
                continue
            if asked:
                raise TimeoutError
            asked = True
            async with asyncio.timeout(QUIET_SECONDS):
                await pubsub.ping()

    def _told(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "message":
                self._take(message["data"])
            case "subscribe":
                if self._failures:
                    log.info("samples over Redis again", server=self._name, channel=self._channel)
                self._failures = 0
                self._connected(True)
