"""Whether tensors are what their checkpoint holds, asked of memory itself: when they land, and again before they are used."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from loader.checkpoint import Checkpoint, TensorEntry
from loader.copiers import crew, host
from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import holds_bytes_of, memory_of
from loader.digest import BLOCK_BYTES, Running, digest_tensors
from loader.errors import DestinationMismatch, some
from loader.loading import Run, reporter
from loader.manifest import Manifest, check_headers, compare, describe, provable
from loader.plan import MAX_GAP_BYTES, Chunk, Piece, plan_reads
from loader.sources.port import Reader

_READ_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was proved.

    Attributes:
        proven: names of the tensors whose bytes are right.
        unproven: names of those that nothing could be compared with: converted ones, and parts where a manifest was used.
        nbytes: bytes that were looked at in memory.
        seconds: time that it took.
    """

    proven: frozenset[str]
    unproven: frozenset[str]
    nbytes: int
    seconds: float


def verify_resident(
    checkpoint: Checkpoint,
    tensors: Mapping[str, torch.Tensor],
    *,
    manifest: Manifest | None = None,
    run: Run | None = None,
) -> Proof:
    """Compare tensors that are in memory with what they were loaded from.

    Reads each tensor where it lies; on a GPU a checkpoint of 17 GB takes milliseconds. No thread or memory is left.

    Args:
        checkpoint: what they were loaded from, with the same parts.
        tensors: by name; each must be in the checkpoint. Contiguous, all on one device.
        manifest: what to compare with; without one the source is read again.
        run: how the source is read.

    Raises:
        DigestMismatch: a tensor differs, or headers are not those of the manifest.
        DestinationMismatch: a tensor is not in the checkpoint, or is not contiguous.
        LoadError: the source can't be read.
    """
    begun = time.perf_counter()
    part = checkpoint.only(_known(checkpoint, tensors))
    comparable = {name for name, entry in part.tensors.items() if holds_bytes_of(tensors[name], entry)}
    if manifest is not None:
        check_headers(part, manifest)
        comparable &= provable(part)
    names = [name for name in part.tensors if name in comparable]
    expected = manifest or describe(part, digest_source(part.only(names), run=run))
    found = digest_tensors({name: tensors[name] for name in names})
    compare(found, part, expected)
    return Proof(
        proven=frozenset(names),
        unproven=frozenset(tensors) - frozenset(names),
        nbytes=sum(part.tensors[name].nbytes for name in names),
        seconds=time.perf_counter() - begun,
    )


def digest_source(checkpoint: Checkpoint, *, run: Run | None = None) -> dict[str, str]:
    """The digest of every tensor of a checkpoint, from its files, in bounded memory.

    Args:
        checkpoint: parts of tensors have digests of their own.
        run: threads, progress, control and source.

    Raises:
        LoadError: reading failed, a file changed meanwhile, or it was called off.
    """
    how = run or Run()
    digests: dict[str, str] = {
        name: Running().hexdigest() for name, entry in checkpoint.tensors.items() if not entry.nbytes
    }
    with how.source.open(checkpoint) as reader:

        @contextmanager
        def worker() -> Iterator[CopyChunk]:
            digester = _Digester(reader)

            def digest(chunk: Chunk) -> None:
                entry = checkpoint.tensors[chunk.pieces[0].tensor]
                digests[entry.name] = digester.digest(entry)

            yield digest

        crew.run(
            [_whole(entry) for entry in checkpoint.tensors.values() if entry.nbytes],
            threads=how.threads or host.default_threads(),
            open_worker=worker,
            report=reporter(how.progress, checkpoint.total_bytes),
            control=how.control,
        )
        reader.verify()
    return {name: digests[name] for name in checkpoint.tensors}


class _Digester:
    """Digests tensor after tensor through one buffer, for one thread."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # Behind what is read there is room for what was left of the last block, and for gaps.
        self._data = torch.empty(_READ_BYTES + BLOCK_BYTES + MAX_GAP_BYTES, dtype=torch.uint8)
        self._memory = memory_of(self._data)
        self._dropped = self._memory[-MAX_GAP_BYTES:]

    def digest(self, entry: TensorEntry) -> str:
        running = Running()
        left = 0
        for chunk in plan_reads([entry], chunk_bytes=_READ_BYTES):
            self._reader.read(chunk.file, chunk.begin, chunk.packed(self._memory[left:], self._dropped))
            filled = left + chunk.nbytes
            whole = filled // BLOCK_BYTES * BLOCK_BYTES
            running.add(self._data[:whole])
            left = filled - whole
            self._data[:left] = self._data[whole:filled].clone()
        running.add(self._data[:left])
        return running.hexdigest()


def _whole(entry: TensorEntry) -> Chunk:
    piece = Piece(tensor=entry.name, offset=0, nbytes=entry.nbytes)
    return Chunk(file=entry.file, begin=entry.begin, nbytes=entry.nbytes, pieces=(piece,))


def _known(checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    unknown = sorted(tensors.keys() - checkpoint.tensors.keys())
    scattered = sorted(name for name, tensor in tensors.items() if not tensor.is_contiguous())
    for names, what in ((unknown, "not in the checkpoint"), (scattered, "not contiguous")):
        if names:
            raise DestinationMismatch(
                f"tensor {some(names)}: {what}",
                file=checkpoint.root,
                tensor=names[0],
                hint="pass tensors as they were loaded, by their names in the checkpoint",
            )
    return list(tensors)
