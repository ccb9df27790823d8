"""The stage daemon's server: one thread per connection, which is its client's lease.

Who may connect is decided by the kernel's word on the peer (SO_PEERCRED), whatever the socket's file mode. Requests:

- ``{"op": "take", "path": …}``: lease a checkpoint, staging it first. Answer ``{"ok": true, "files": n, "proven": …}``, then per
  shard ``{"file": …, "size": …, "mtimeNs": …, "device": …, "inode": …}`` with the descriptor of its sealed memory.
- ``{"op": "copy", "path": …, "moves": [[file, begin, bytes, offset], …]}`` with a descriptor of the client's memory: copy there. With
  ``"device"`` (its UUID) and ``"size"`` the descriptor is one of device memory.
- ``{"op": "list"}`` and ``{"op": "drop", "path": …}``.
"""

import fcntl
import itertools
import os
import socket
import stat
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread

from loader.copiers.destinations import memory_of
from loader.errors import DestinationMismatch, DeviceUnavailable, LoaderError, LoadError, StageUnreachable
from loader.stage import wire
from loader.stage.device import DeviceCopier, DeviceTarget
from loader.stage.pool import Pool, Staged
from loader.stage.wire import Move

MAX_CONNECTIONS = 256
_COPY_THREADS = 4
_COPY_BYTES = 16 * 2**20
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG = 64


class Daemon:
    """Serves a pool.

    Args:
        pool: what is served.
        path: the Unix socket.
        users: ids of users who may connect, besides the daemon's own and root.
        devices: copies to devices; None where the daemon shall make no CUDA context.
    """

    def __init__(
        self,
        pool: Pool,
        path: Path,
        users: frozenset[int] = frozenset(),
        devices: DeviceCopier | None = None,
    ) -> None:
        self._pool = pool
        self._devices = devices
        self._users = users | {0, os.geteuid()}
        self._path = path
        self._room = BoundedSemaphore(MAX_CONNECTIONS)
        self._holders = itertools.count(1)
        self._connections: dict[int, socket.socket] = {}
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._closed = False
        self._guard = _only_one(path)
        try:
            self._listener = _listen(path, others=bool(users))
        except StageUnreachable:
            os.close(self._guard)
            raise

    def serve(self) -> None:
        """Answer until `close` is called."""
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            self._room.acquire()
            thread = Thread(target=self._answer, args=(connection, next(self._holders)), name="loader-stage")
            with self._lock:
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            thread.start()

    def close(self) -> None:
        """Stop answering, let go of all memory, and remove the socket. Any thread may call it."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in self._connections.values():
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        self._pool.close()
        for thread in threads:
            thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        os.close(self._guard)

    def _answer(self, connection: socket.socket, holder: int) -> None:
        try:
            with connection, self._known(connection, holder):
                if self._closed or not self._may(connection):
                    return
                with suppress(StageUnreachable):
                    while True:
                        self._answer_one(connection, holder)
        finally:
            self._pool.release(holder)
            self._room.release()

    @contextmanager
    def _known(self, connection: socket.socket, holder: int) -> Iterator[None]:
        with self._lock:
            self._connections[holder] = connection
        try:
            yield
        finally:
            with self._lock:
                del self._connections[holder]

    def _may(self, connection: socket.socket) -> bool:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(raw)
        if user in self._users:
            return True
        refusal = StageUnreachable(
            f"user {user} may not use this stage daemon", hint="start it with --allow-user for that user"
        )
        with suppress(StageUnreachable):
            wire.send(connection, wire.failure(refusal))
        return False

    def _answer_one(self, connection: socket.socket, holder: int) -> None:
        request, descriptor = wire.receive(connection)
        try:
            self._carry_out(connection, request, descriptor, holder)
        except StageUnreachable:
            raise
        except LoaderError as error:
            wire.send(connection, wire.failure(error))
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _carry_out(
        self, connection: socket.socket, request: dict[str, object], descriptor: int | None, holder: int
    ) -> None:
        path = request.get("path")
        match request.get("op"):
            case "take" if isinstance(path, str):
                with closing(self._pool.take(path, holder)) as staged:
                    _give(connection, staged)
            case "copy" if isinstance(path, str) and descriptor is not None:
                moves = _moves(request.get("moves"))
                with closing(self._pool.take(path, holder)) as staged:
                    copied = self._copy(staged, moves, descriptor, request)
                wire.send(connection, {"ok": True, "bytes": copied})
            case "list":
                for status in self._pool.statuses():
                    wire.send(connection, {"ok": True, "more": True} | asdict(status))
                wire.send(connection, {"ok": True, "more": False})
            case "drop" if isinstance(path, str):
                wire.send(connection, {"ok": True, "dropped": self._pool.drop(path)})
            case other:
                raise LoadError(f"there is no request {other!r} of this form", hint="use loader.stage.client")

    def _copy(self, staged: Staged, moves: list[Move], target: int, request: dict[str, object]) -> int:
        match request.get("device"), request.get("size"):
            case None, None:
                return _copy_to_host(staged, moves, target)
            case str(uuid), int(size) if self._devices is not None:
                _check_moves(staged, moves, size)
                return self._devices.copy(
                    staged, moves, DeviceTarget(descriptor=target, nbytes=size, uuid=uuid)
                )
            case _ if self._devices is None:
                raise DeviceUnavailable(
                    "this stage daemon copies to no device",
                    hint="start it with --cuda, or load from its memory",
                )
            case _:
                raise DestinationMismatch("a device and the size of its memory belong together")


def _give(connection: socket.socket, staged: Staged) -> None:
    wire.send(connection, {"ok": True, "files": len(staged.shards), "proven": staged.proven})
    for shard in staged.shards:
        about = shard.identity
        wire.send(
            connection,
            {
                "file": shard.file,
                "size": about.size_bytes,
                "mtimeNs": about.mtime_ns,
                "device": about.device,
                "inode": about.inode,
            },
            shard.descriptor,
        )


def _moves(value: object) -> list[Move]:
    if not isinstance(value, list):
        raise DestinationMismatch("moves are no list")
    moves: list[Move] = []
    for item in value:
        match item:
            case [str(file), int(begin), int(nbytes), int(offset)] if min(begin, nbytes, offset) >= 0:
                moves.append((file, begin, nbytes, offset))
            case _:
                raise DestinationMismatch("a move is no file, begin, length and offset")
    return moves


def _check_moves(staged: Staged, moves: list[Move], size: int) -> None:
    """See that every range is inside its shard and inside a target of this size."""
    sizes = {shard.file: shard.identity.size_bytes for shard in staged.shards}
    for file, begin, nbytes, offset in moves:
        if begin + nbytes > sizes.get(file, -1) or offset + nbytes > size:
            raise DestinationMismatch(
                f"a move of {nbytes} bytes doesn't fit its shard or its target", file=file
            )


def _copy_to_host(staged: Staged, moves: list[Move], target: int) -> int:
    """Copy ranges of shards into a client's memory, which is as large as it is."""
    about = os.fstat(target)
    if not stat.S_ISREG(about.st_mode) or fcntl.fcntl(target, fcntl.F_GETFL) & os.O_APPEND:
        raise DestinationMismatch("what was handed over is no memory")
    _check_moves(staged, moves, about.st_size)
    memory = {shard.file: memory_of(shard.data) for shard in staged.shards}
    pieces = [
        (memory[file][begin + start : begin + min(start + _COPY_BYTES, nbytes)], offset + start)
        for file, begin, nbytes, offset in moves
        for start in range(0, nbytes, _COPY_BYTES)
    ]
    with ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="loader-stage-copy") as threads:
        try:
            return sum(threads.map(lambda piece: _write(target, *piece), pieces))
        except OSError as error:
            raise LoadError(f"the memory handed over can't be written to: {error.strerror}") from error


def _write(target: int, data: memoryview, offset: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(target, data[done:], offset + done)
    return done


def _only_one(path: Path) -> int:
    """Hold a lock beside the socket, which goes with the process, so that a second daemon finds out at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_socket(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StageUnreachable(
            "a stage daemon serves this socket already", file=str(path), hint="use another --socket"
        ) from None
    return descriptor


def _listen(path: Path, *, others: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)  # of a daemon that was killed: the lock says that there is none
        listener.bind(str(path))
        path.chmod(0o666 if others else 0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _no_socket(path, error) from error
    return listener


def _no_socket(path: Path, error: OSError) -> StageUnreachable:
    return StageUnreachable(
        f"the socket can't be made: {error.strerror or error}", file=str(path), hint="use another --socket"
    )
