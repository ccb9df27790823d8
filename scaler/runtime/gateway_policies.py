"""The policies of a gateway that watches pods: read by a process of its own, and put in force when they can be used."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.runtime.policy_process import PolicyReader, ReaderFailed, Verb

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_MOST_LOGGED: Final = 10


class GatewayPolicies:
    """Keeps to the files while `run` runs; a set that can't be used changes nothing.

    Args:
        reader: reads them.
        policies: the set in force.
        adopt: takes another one.
    """

    def __init__(self, reader: PolicyReader, policies: PolicySet, adopt: Callable[[PolicySet], None]) -> None:
        self._reader = reader
        self._policies = policies
        self._adopt = adopt
        self._asked = asyncio.Event()
        self._failures = 0
        self._faults: Sequence[PolicyFault] = ()

    def read_again(self) -> None:
        """Have the files read now, whatever they look like."""
        self._asked.set()

    async def run(self) -> None:
        """Look at the files until cancelled."""
        while True:
            verb: Verb = "read" if self._asked.is_set() else "look"
            self._asked.clear()
            await self._attempt(verb)
            pause = min(_LOOK_SECONDS * 2.0 ** min(self._failures, 10), _LONGEST_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._asked.wait()

    async def _attempt(self, verb: Verb) -> None:
        try:
            answer, new = await self._reader.ask(verb, self._policies)
        except ReaderFailed as error:
            if not self._failures:
                log.warning("policy files can't be read; policies stay as they are", problem=str(error))
            self._failures += 1
            return
        self._failures = 0
        if not answer.read:
            return
        self._faults = answer.faults
        for fault in answer.faults[:_MOST_LOGGED]:
            log.warning("policies refused; the last good ones stay", fault=str(fault))
        if new is not None:
            self._policies = new
            self._adopt(new)
            log.info("policies read", policies=new.short_hash)

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it."""
        return {
            "hash": self._policies.short_hash,
            "faults": [fault.as_json() for fault in self._faults[:_MOST_LOGGED]],
        }
