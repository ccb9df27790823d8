"""CPU tensors that are the file's own pages, mapped privately: nothing is copied until somebody writes.

The fastest way to CPU tensors that nobody has allocated yet, and processes that load the same file share its memory.
The price: the tensors stay tied to the file. Whoever cuts it short later kills their readers (SIGBUS), so `loader.load`,
which fills memory of its own, is for weights that must outlive the file's next update.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Mapping
from contextlib import nullcontext

import torch

from loader.checkpoint import Checkpoint, TensorEntry
from loader.control import Control
from loader.copiers import crew
from loader.copiers.destinations import torch_layout
from loader.errors import FileChanged, ReadFailed
from loader.plan import Chunk, plan_reads
from loader.sources.files import ShardReader

CHUNK_BYTES = 32 * 2**20
"""One call of madvise each: few enough calls, and enough of them for all threads to have some."""
_MADV_POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it
_MAP_NORESERVE = 0x4000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_tensors(checkpoint: Checkpoint, *, threads: int) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint on the CPU, its pages already read in where they weren't.

    Tensors that don't lie on a multiple of their element's size are copied to memory where they do.

    Raises:
        DtypeUnsupported: torch has no dtype for one of them.
        LoadError: reading failed, or the file changed meanwhile.
    """
    for entry in checkpoint.tensors.values():
        torch_layout(entry)
    with ShardReader(checkpoint) as reader:
        mappings = {file: _map(reader.descriptor(file), reader.path(file)) for file in checkpoint.shards}
        # Having the kernel map pages that are in memory takes longer than what it saves when they are touched.
        ranges = [(file, 0, shard.identity.size_bytes) for file, shard in checkpoint.shards.items()]
        if reader.nearness(ranges).cached_share != 1.0:
            _populate(reader, checkpoint, mappings, threads)
        reader.verify()
        return {name: _view(mappings[entry.file], entry) for name, entry in checkpoint.tensors.items()}


def map_shards(checkpoint: Checkpoint, descriptors: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint whose shards are in memory already, by their open files.

    Raises:
        DtypeUnsupported: torch has no dtype for one of them.
        ReadFailed: a shard can't be mapped.
    """
    mappings = {file: _map(descriptors[file], f"{checkpoint.root}/{file}") for file in checkpoint.shards}
    return {name: _view(mappings[entry.file], entry) for name, entry in checkpoint.tensors.items()}


def _map(descriptor: int, path: str) -> mmap.mmap:
    try:
        try:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            # Of memory that comes in reserved pages no copy could be made of every page. Few are ever written to.
            return mmap.mmap(
                descriptor,
                0,
                flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
    except (OSError, ValueError) as error:
        raise ReadFailed(f"cannot be mapped: {error}", file=path) from error


def _populate(
    reader: ShardReader, checkpoint: Checkpoint, mappings: dict[str, mmap.mmap], threads: int
) -> None:
    """Have the kernel read and map every page now, so that errors show here and not as a signal later."""
    bases = {file: ctypes.addressof(ctypes.c_char.from_buffer(mapping)) for file, mapping in mappings.items()}

    def populate(chunk: Chunk) -> None:
        begin = chunk.begin // mmap.PAGESIZE * mmap.PAGESIZE
        nbytes = chunk.end - begin
        if _LIBC.madvise(bases[chunk.file] + begin, nbytes, _MADV_POPULATE_READ) == 0:
            return
        code = ctypes.get_errno()
        if code == errno.EINVAL:
            return  # a kernel before 5.14: pages come when they are first touched
        reader.verify()
        raise ReadFailed(f"cannot be read: {os.strerror(code)}", file=reader.path(chunk.file), offset=begin)

    crew.run(
        plan_reads(checkpoint.tensors.values(), chunk_bytes=CHUNK_BYTES),
        threads=threads,
        open_worker=lambda: nullcontext(populate),
        report=lambda _: None,
        control=Control(),
    )


def _view(mapping: mmap.mmap, entry: TensorEntry) -> torch.Tensor:
    dtype, shape = torch_layout(entry)
    if not entry.nbytes:
        return torch.empty(shape, dtype=dtype)
    if entry.end > len(mapping):
        raise FileChanged("was cut short while it was loaded", file=entry.file, offset=len(mapping))
    data = torch.frombuffer(mapping, dtype=torch.uint8, count=entry.end - entry.begin, offset=entry.begin)
    if entry.runs is not None:
        data = data.as_strided((entry.runs.count, entry.runs.nbytes), (entry.runs.pitch, 1)).reshape(-1)
    elif entry.begin % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).reshape(shape)
