"""The process: listeners first, then the engine on its thread, then signals until the end."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import cast

from aiohttp import web

from warmpool.listening import name_no_software
from warmpool.reference.control import Control
from warmpool.reference.crew import Crew
from warmpool.reference.engine import Engine, Runner
from warmpool.reference.errors import CannotStart, EngineStopped, RankLost, ReferenceEngineError
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions, ServerOptions
from warmpool.reference.scheduler import PauseMode, Scheduler, SchedulerState
from warmpool.reference.server import Service, public_app
from warmpool.reference.startup import Origin, Phase, Startup

JOIN_SECONDS = 10.0
"""How long the compute thread may take for its last step."""
CLOSE_SECONDS = 5.0
"""How long control calls may go on once the engine has stopped."""
_LONGEST_HEADER_BYTES = 16_384
"""The longest line of a head that it takes: as much as the guard and the gateway let through."""
_PR_SET_PDEATHSIG = 1
_SWITCH_SECONDS = 0.0005
"""How long one thread may keep the interpreter when another wants it. The compute thread asks for it after every operation."""

ExitCode = int


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).

    Args:
        parent: the parent's process id as it was when this process started; if it has gone since, this process ends at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise CannotStart(
            f"prctl failed: {os.strerror(code)}", hint="start without --die-with-parent on this kernel"
        )
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def run(options: ServerOptions, model: ModelOptions, origin: Origin | None = None) -> ExitCode:
    """Serve until SIGTERM or SIGINT.

    Args:
        options: where and how to serve.
        model: what.
        origin: how this process came to be; None for a process of its own.

    Returns:
        0 after a signal, 1 if the engine failed, 2 if it couldn't start; then one line on stderr says why, and one how to mend it.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    process = _Process(options, model, Startup(origin))
    try:
        code = asyncio.run(process.serve())
    except CannotStart as error:
        print(f"error: {' '.join(str(error).split())}\nhint: {error.hint}", file=sys.stderr, flush=True)  # noqa: T201 (the interface)
        code = 2
    if not process.thread_ended:
        # The compute thread is inside a library and won't see that the interpreter ends. Everything is said and closed.
        sys.stderr.flush()
        os._exit(code)
    return code


class _Process:
    def __init__(self, options: ServerOptions, model: ModelOptions, startup: Startup) -> None:
        self._options = options
        self._model = model
        self._startup = startup
        self._signals = 0
        self.thread_ended = True

    async def serve(self) -> ExitCode:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        service = Service(self._options, self._model, self._startup)
        scheduler = Scheduler(limits=self._options.limits, pacer=self._options.pacer)
        engine = Engine(lambda: self._make_runner(lost), scheduler, service.frontend.report)

        def lost(error: RankLost) -> None:
            engine.fail(error)
            _poke(loop, changed)

        for future in (engine.ready, engine.ended):
            future.add_done_callback(lambda _: _poke(loop, changed))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, changed, engine)
        try:
            async with self._listening(service) as ports:
                self._startup.done(Phase.PROCESS, **ports)
                engine.start()
                await self._until(lambda: engine.ready.done() or engine.failure is not None, changed)
                if engine.failure is not None and not engine.ready.done():
                    raise _not_started(engine.failure)
                if engine.ready.done():
                    try:
                        engine.ready.result()
                    except RankLost as error:
                        raise _not_started(error) from error
                    service.attach(engine)
                    # What was made up to now stays. Looking through all of it again and again for garbage would stop the process for
                    # a tenth of a second each time, in the middle of a request or of a promotion.
                    gc.freeze()
                    self._announce(ports)
                    await self._until(lambda: engine.ended.done() or engine.failure is not None, changed)
                    await self._end_held(engine)
        finally:
            # The listeners have closed, and what ran has ended or its time was up.
            engine.stop()
            patience = JOIN_SECONDS if engine.ready.done() else 0.0
            self.thread_ended = await asyncio.to_thread(engine.join, patience)
        failed = engine.ended.done() and engine.ended.exception() is not None
        return 1 if failed or engine.failure is not None else 0

    def _make_runner(self, lost: Callable[[RankLost], None]) -> Runner:
        opened = open_model(self._model)
        # The one heavy import, on the compute thread, while the listeners already answer.
        if self._model.tensor_parallel_size == 1:
            module = importlib.import_module("warmpool.reference.runner")
            return cast("Runner", module.build(opened, self._model, self._startup))
        crew = Crew.start(self._model, lost)  # they import meanwhile
        try:
            module = importlib.import_module("warmpool.reference.leading")
            return cast("Runner", module.build(opened, self._model, self._startup, crew))
        except BaseException:
            crew.close()
            raise

    @contextlib.asynccontextmanager
    async def _listening(self, service: Service) -> AsyncIterator[dict[str, int]]:
        """Open both listeners; on the way out close them and wait until their requests have ended, the public one's first."""
        options = self._options
        apps = {
            "controlPort": (
                Control(service).app(),
                options.control_host,
                options.control_port,
                CLOSE_SECONDS,
            ),
            "port": (public_app(service), options.host, options.port, options.shutdown_seconds),
        }
        async with contextlib.AsyncExitStack() as stack:
            ports = {}
            for name, (app, host, port, patience) in apps.items():
                app.on_response_prepare.append(name_no_software)
                runner = web.AppRunner(
                    app,
                    access_log=None,
                    handler_cancellation=True,
                    shutdown_timeout=patience,
                    max_line_size=_LONGEST_HEADER_BYTES,
                    max_field_size=_LONGEST_HEADER_BYTES,
                )
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                ports[name] = await _listen(runner, host, port)
            yield ports

    def _on_signal(self, changed: asyncio.Event, engine: Engine) -> None:
        self._signals += 1
        changed.set()
        if self._signals > 1:
            # Asked twice: what still runs is cut off.
            with contextlib.suppress(EngineStopped):
                engine.pause(PauseMode.ABORT)

    async def _until(self, condition: Callable[[], bool], changed: asyncio.Event) -> None:
        """Wait for a condition or a signal."""
        while self._signals == 0 and not condition():
            changed.clear()
            await changed.wait()

    async def _end_held(self, engine: Engine) -> None:
        """Requests that a paused engine holds would never end by themselves."""
        if engine.failure is not None:
            return
        with contextlib.suppress(EngineStopped):
            async with asyncio.timeout(JOIN_SECONDS):
                state, _ = await asyncio.wrap_future(engine.state())
                if state is SchedulerState.PAUSED:
                    await asyncio.wrap_future(engine.pause(PauseMode.ABORT))

    def _announce(self, ports: dict[str, int]) -> None:
        self._startup.done(Phase.READY, frozenObjects=gc.get_freeze_count())
        if self._options.ready_fd is not None:
            line = json.dumps({"pid": os.getpid(), **ports}) + "\n"
            with os.fdopen(self._options.ready_fd, "w") as pipe:
                pipe.write(line)


def _not_started(failure: ReferenceEngineError) -> CannotStart:
    return CannotStart(
        f"the engine can't start: {failure}", hint="see what that rank has said before, and start again"
    )


def _poke(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
        loop.call_soon_threadsafe(changed.set)


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise CannotStart(
            f"can't listen on {host}:{port}: {os.strerror(error.errno) if error.errno else error}",
            hint="another process has this port; stop it or choose another port"
            if taken
            else "choose another address or port",
        ) from error
    return int(runner.addresses[0][1])
