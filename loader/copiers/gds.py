"""Into CUDA tensors past the host's memory, with GPUDirect Storage: for machines that have it, and only when it is asked for.

Whether it works is found out by doing: each file is registered, and its first bytes are read both ways and compared. Files that
don't take part are read through page-locked memory, which the load's result tells by a reason code.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from loader.copiers import cufile, pinned
from loader.copiers.crew import CopyChunk
from loader.copiers.cufile import CuFile, CuFileMissing, CuFileRefused
from loader.copiers.destinations import converted, converted_bytes
from loader.copiers.job import Copy, Job
from loader.errors import ReadFailed, ShortRead
from loader.plan import PAGE_BYTES, Chunk, Piece
from loader.sources.files import ShardReader
from loader.sources.port import Fallback

_log = logging.getLogger("loader")


def copy(job: Job) -> int:
    """Fill the destinations; the bytes of buffers that this took besides them.

    Raises:
        LoadError: reading failed; some destinations are filled, some partly.
    """
    try:
        library = cufile.open_cufile()
    except CuFileMissing as missing:
        _log.warning("no GPUDirect Storage: %s", missing)
        job.fallbacks.add(Fallback.GDS_REFUSED if missing.has_driver else Fallback.GDS_NO_DRIVER)
        return pinned.copy(job)
    return copy_with(library, job, otherwise=pinned.copy)


def copy_with(library: CuFile, job: Job, *, otherwise: Copy) -> int:
    """The same with a library that has been opened.

    Args:
        library: cuFile.
        job: what to copy.
        otherwise: copies what is in files that don't take part.

    Raises:
        LoadError: reading failed.
    """
    job.prepare_all()
    with ExitStack() as closing:
        handles = _Files(library, job, closing).handles()
        direct = [chunk for chunk in job.chunks if chunk.file in handles]
        rest = [chunk for chunk in job.chunks if chunk.file not in handles]
        staging_bytes = 0
        if direct:
            staging_bytes = _copy(library, replace(job, chunks=direct), handles)
    if rest:
        job.fallbacks.add(Fallback.GDS_REFUSED)
        staging_bytes += otherwise(replace(job, chunks=rest))
    return staging_bytes


def _copy(library: CuFile, job: Job, handles: Mapping[str, int]) -> int:
    copying = _DirectCopy(library, job, handles)
    job.share_out(copying.worker)
    return job.most_workers * copying.staging_bytes


class _Files:
    """Registers the files of a job, as far as they take part."""

    def __init__(self, library: CuFile, job: Job, closing: ExitStack) -> None:
        self._library = library
        self._job = job
        self._closing = closing
        self._device = next((item.tensor.device for item in job.destinations.values()), torch.device("cpu"))

    def handles(self) -> dict[str, int]:
        """Handles by file."""
        reader = self._job.reader
        handles: dict[str, int] = {}
        if not isinstance(reader, ShardReader):
            return handles
        for file in dict.fromkeys(chunk.file for chunk in self._job.chunks):
            try:
                handles[file] = self._register(reader, file)
            except (CuFileRefused, OSError) as refused:
                _log.warning("no GPUDirect Storage for %s: %s", reader.path(file), refused)
        return handles

    def _register(self, reader: ShardReader, file: str) -> int:
        with ExitStack() as undo:
            path = f"/proc/self/fd/{reader.descriptor(file)}"  # the very file that is open already
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            undo.callback(os.close, descriptor)
            handle = self._library.register(descriptor)
            undo.callback(self._library.deregister, handle)
            self._probe(reader, file, handle)
            self._closing.push(undo.pop_all())
        return handle

    def _probe(self, reader: ShardReader, file: str, handle: int) -> None:
        """Read the file's first bytes both ways."""
        expected = bytearray(PAGE_BYTES)
        nbytes = os.preadv(reader.descriptor(file), [expected], 0)
        found = torch.zeros(PAGE_BYTES, dtype=torch.uint8, device=self._device)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        count = self._library.read(handle, found.data_ptr(), nbytes, 0)
        if count != nbytes or bytes(found[:nbytes].cpu().tolist()) != bytes(expected[:nbytes]):
            raise CuFileRefused("the first bytes read past the host's memory are not the file's")


class _DirectCopy:
    def __init__(self, library: CuFile, job: Job, handles: Mapping[str, int]) -> None:
        self._library = library
        self._job = job
        self._handles = handles
        self._destinations = job.destinations
        self._device = next(iter(job.destinations.values())).tensor.device
        names = converted(job.destinations)
        self.staging_bytes = max(converted_bytes(chunk, names) for chunk in job.chunks)
        if self._device.type == "cuda":
            # Reads don't go by streams: whatever still uses the memory must be done.
            torch.cuda.current_stream(self._device).synchronize()

    @contextmanager
    def worker(self) -> Iterator[CopyChunk]:
        with ExitStack() as here:
            if self._device.type == "cuda":
                here.enter_context(torch.cuda.device(self._device))
                stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
                here.enter_context(torch.cuda.stream(stream))
            staging = torch.empty(self.staging_bytes, dtype=torch.uint8, device=self._device)

            def copy_chunk(chunk: Chunk) -> None:
                begin = chunk.begin
                for piece in chunk.pieces:
                    begin += piece.gap
                    self._copy_piece(chunk.file, begin, piece, staging)
                    begin += piece.nbytes

            yield copy_chunk

    def _copy_piece(self, file: str, begin: int, piece: Piece, staging: torch.Tensor) -> None:
        destination = self._destinations[piece.tensor]
        if not destination.converts:
            self._read(file, begin, destination.data[piece.offset : piece.offset + piece.nbytes])
            return
        # Synchronous, for the next read into it goes by no stream.
        data = staging[: piece.nbytes]
        self._read(file, begin, data)
        destination.convert(data, piece.offset)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _read(self, file: str, begin: int, target: torch.Tensor) -> None:
        done = 0
        while done < target.numel():
            try:
                count = self._library.read(
                    self._handles[file], target.data_ptr() + done, target.numel() - done, begin + done
                )
            except CuFileRefused as refused:
                raise ReadFailed(
                    f"cannot be read past the host's memory: {refused}",
                    file=file,
                    offset=begin + done,
                    hint="load without GPUDirect Storage",
                ) from None
            if count == 0:
                self._job.reader.verify()
                raise ShortRead(
                    f"ended {target.numel() - done} bytes too early",
                    file=file,
                    offset=begin + done,
                    hint="load without GPUDirect Storage",
                )
            done += count
