"""The controller's end of the process that reads its policies: started when it is needed, and anew when it has died.

Everything here happens between other things on the loop: a set arrives in pieces, and after each the loop has its turn.
"""

import asyncio
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from scaler.policy.compile import PolicySet
from scaler.runtime.policy_exchange import LENGTH, Answer, Handed, frame, joined

Verb = Literal["look", "read"]

DEADLINE_SECONDS = 60.0
"""How long one answer may take: five times what 500 policies take on one slow core."""
_END_SECONDS = 2.0
"""How long its end may take; a process that hangs in a file system can't even be killed."""


class ReaderFailed(Exception):
    """The process died, or didn't answer in time; whether the files can be used is unknown."""


class PolicyReader:
    """Asks for policy sets, one request at a time.

    Args:
        paths: policy files and directories; none where all is handed over.

    Attributes:
        paths: the same as text.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(map(str, paths))
        self._process: asyncio.subprocess.Process | None = None
        self._hung: asyncio.subprocess.Process | None = None

    async def ask(self, verb: Verb, in_force: PolicySet) -> tuple[Answer, PolicySet | None]:
        """Have the files looked at, or read whatever they look like.

        Args:
            verb: `look` reads only what has changed and kept still since the last look; `read` reads now.
            in_force: the set in force.

        Returns:
            The answer, and the new set if there is one.

        Raises:
            ReaderFailed: there is no answer. The next call starts another process, once the old one is gone.
        """
        return await self._asked(f"{verb} {in_force.hash}\n".encode("ascii"), in_force)

    async def take(self, handed: Handed, in_force: PolicySet) -> tuple[Answer, PolicySet | None]:
        """Have policies read that are no files, as `ask`.

        Raises:
            ReaderFailed: as with `ask`.
        """
        return await self._asked(f"take {in_force.hash}\n".encode("ascii") + frame(handed), in_force)

    async def _asked(self, request: bytes, in_force: PolicySet) -> tuple[Answer, PolicySet | None]:
        try:
            process = await self._running()
            assert process.stdin is not None
            async with asyncio.timeout(DEADLINE_SECONDS):
                process.stdin.write(request)
                await process.stdin.drain()
                answer: Answer = await _received(process)
                if not answer.pieces:
                    return answer, None
                pieces = [await _received(process) for _ in range(answer.pieces)]
                return answer, joined(pieces, in_force)
        except TimeoutError as error:
            await self.close()
            why = "; does the file system hang?" if self.paths else ""
            raise ReaderFailed(f"no answer for {DEADLINE_SECONDS:.0f} s{why}") from error
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            code = await self.close()
            raise ReaderFailed(f"the process that reads them ended with exit code {code}") from error
        except OSError as error:
            await self.close()
            raise ReaderFailed(
                f"a process that reads them can't be started: {error.strerror or error}"
            ) from error
        except (pickle.UnpicklingError, AttributeError, ImportError, TypeError) as error:
            await self.close()
            raise ReaderFailed(
                f"the process that reads them is of another version ({error}); restart this one"
            ) from error

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            return self._process
        if (
            self._hung is not None and self._hung.returncode is None
        ):  # else there would be more and more of them
            raise ReaderFailed(f"process {self._hung.pid}, which reads them, hangs and can't be ended")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "scaler.runtime.policy_reader", *self.paths),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C and a hang-up are the controller's business
        )
        return self._process

    async def close(self) -> int | None:
        """End the process; return its exit code, or None if there was none or it doesn't end."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.kill()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        except TimeoutError:
            self._hung = process
        return process.returncode


async def _received(process: asyncio.subprocess.Process) -> Any:  # noqa: ANN401 - whatever was sent
    """Read one frame. It comes from our own child, so it may be unpickled."""
    assert process.stdout is not None
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    raw = await process.stdout.readexactly(length)
    await asyncio.sleep(0)  # data that is here already would not let the loop have its turn
    return pickle.loads(raw)  # noqa: S301
