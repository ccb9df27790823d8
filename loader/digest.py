"""Digests of tensors, computed where their bytes lie: in device memory, in host memory, or in a file.

Algorithm ``block-sums-blake2b-1``. The tensor's bytes, filled up with zeros to a multiple of 8 KiB, are a matrix of 64-bit
little-endian words with 1,024 columns. All sums wrap around at 2^64. The digest is BLAKE2b with 16 bytes of output over: the
number of bytes before filling (8 bytes, little-endian), the 1,024 sums of the columns, the sums of the rows in order.

One changed bit changes one row's and one column's sum by a power of two. Rows (8 KiB) that are zeroed, repeated or have changed
places change the sums of rows; words that have changed places inside a row change those of columns; tensors of the same shape that
have changed places have each other's digest. Sums are what any device computes at the speed of its memory, and they take a
thousandth of the tensor's size. They find faults, and are no defence against somebody who makes two tensors alike on purpose.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from loader.checkpoint import Checkpoint
from loader.copiers.destinations import bytes_of, memory_of
from loader.manifest import Manifest, compare, provable

BLOCK_BYTES = 8192
_WORD_BYTES = 8
_COLUMNS = BLOCK_BYTES // _WORD_BYTES
_HOST_PIECE_BYTES = 2**20
"""Stays in a core's cache between the two passes."""
_DEVICE_PIECE_BYTES = 2**31
_COPIED_PIECE_BYTES = 16 * 2**20
"""Memory for tensors that don't begin on a word, which are summed through a copy."""
_BATCH_WORDS = 2**17
"""Sums are taken from the device 1 MiB at a time."""
_HASH_THREADS = 8
_PENDING_BATCHES = 4 * _HASH_THREADS
"""Batches that wait while the device goes on."""


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The digest of every tensor, in hexadecimal.

    Takes a thousandth of the tensors' size on their device and as much of page-locked memory, each at most 48 MiB and what one tensor's
    sums take.

    Args:
        tensors: contiguous, all on one device; work queued on the current stream is waited for.
    """
    digests: dict[str, str] = {}
    with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="loader-digest") as pool:
        come = deque[_Come]()
        hashed = deque[tuple[list[str], Future[list[str]]]]()
        for batch in _batches(tensors):
            sums = torch.cat([part for _, tensor in batch for part in _sums_of(tensor)])
            names, lengths = [name for name, _ in batch], [tensor.nbytes for _, tensor in batch]
            come.append(_Come(names, lengths, *_to_host(sums)))
            # Not as soon as they come: threads that hash and the one that keeps the device busy wait for each other.
            if len(come) > _PENDING_BATCHES:
                _hash_next(come, hashed, pool)
            if len(hashed) > _HASH_THREADS:
                _take_in(digests, hashed.popleft())
        while come:
            _hash_next(come, hashed, pool)
        while hashed:
            _take_in(digests, hashed.popleft())
    return digests


class _Come(NamedTuple):
    """A batch's sums on their way to the host; its event is None where they are there already."""

    names: list[str]
    lengths: list[int]
    sums: torch.Tensor
    event: torch.cuda.Event | None


def _hash_next(
    come: deque[_Come], hashed: deque[tuple[list[str], Future[list[str]]]], pool: ThreadPoolExecutor
) -> None:
    batch = come.popleft()
    hashed.append((batch.names, pool.submit(_hash_all, batch.lengths, batch.sums, batch.event)))


def _take_in(digests: dict[str, str], done: tuple[list[str], Future[list[str]]]) -> None:
    names, hashing = done
    digests.update(zip(names, hashing.result(), strict=True))


def _to_host(sums: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """Where sums are on the host, and what tells that they have come; None where they are there already."""
    if not sums.is_cuda:
        return sums.cpu(), None
    host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
    host.copy_(sums, non_blocking=True)
    come = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    come.record(torch.cuda.current_stream(sums.device))
    return host, come


def _hash_all(lengths: list[int], sums: torch.Tensor, come: torch.cuda.Event | None) -> list[str]:
    if come is not None:
        come.synchronize()
    counts = [_COLUMNS + _rows(nbytes) for nbytes in lengths]
    return [_hash(nbytes, part) for nbytes, part in zip(lengths, torch.split(sums, counts), strict=True)]


def prove(
    checkpoint: Checkpoint,
    tensors: Mapping[str, torch.Tensor],
    manifest: Manifest,
    *,
    converted: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Compare tensors that have landed with a manifest; the names of those that could be: whole ones, as they are in the file.

    Args:
        checkpoint: what they were loaded from, with the same parts.
        tensors: by name, all of the checkpoint's, as `digest_tensors` takes them.
        manifest: what they must be.
        converted: names of those that have another dtype than the file.

    Raises:
        DigestMismatch: one or more differ.
    """
    names = provable(checkpoint) - converted
    digests = digest_tensors({name: tensors[name] for name in checkpoint.tensors if name in names})
    compare(digests, checkpoint, manifest)
    return names


class Running:
    """The digest of one tensor whose bytes come in pieces, in order, each a multiple of 8 KiB but the last."""

    def __init__(self) -> None:
        self._columns = torch.zeros(_COLUMNS, dtype=torch.int64)
        self._rows: list[torch.Tensor] = []
        self._nbytes = 0

    def add(self, data: torch.Tensor) -> None:
        """Take in the next bytes."""
        if self._nbytes % BLOCK_BYTES:
            raise ValueError("only the last piece may end inside a block")
        columns, *rows = _sums_in_parts(data)
        self._columns += columns
        self._rows += rows
        self._nbytes += data.numel()

    def hexdigest(self) -> str:
        """The digest of everything taken in."""
        return _hash(self._nbytes, torch.cat([self._columns, *self._rows]))


def _batches(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    batch: list[tuple[str, torch.Tensor]] = []
    words = 0
    for name, tensor in tensors.items():
        batch.append((name, tensor))
        words += _COLUMNS + _rows(tensor.nbytes)
        if words >= _BATCH_WORDS:
            yield batch
            batch, words = [], 0
    if batch:
        yield batch


def _rows(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES)


def _sums_in_parts(data: torch.Tensor) -> list[torch.Tensor]:
    """Sums of the columns, then of the rows."""
    whole = data.numel() // BLOCK_BYTES * BLOCK_BYTES
    columns: torch.Tensor | None = None
    rows = []
    for words in _words(data[:whole]):
        sums = words.sum(dim=0)
        columns = sums if columns is None else columns.add_(sums)
        rows.append(words.sum(dim=1))
    if columns is None:
        columns = torch.zeros(_COLUMNS, dtype=torch.int64, device=data.device)
    if whole < data.numel():
        filled = torch.zeros(BLOCK_BYTES, dtype=torch.uint8, device=data.device)
        filled[: data.numel() - whole] = data[whole:]
        words = filled.view(torch.int64)
        columns += words
        rows.append(words.sum().view(1))
    return [columns, *rows]


def _sums_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The same of a tensor, with as few of torch's calls as can be where it is a whole number of blocks, as most of a model are."""
    nbytes, begin = tensor.nbytes, tensor.storage_offset() * tensor.element_size()
    at_once = nbytes and nbytes % BLOCK_BYTES == 0 and nbytes <= _DEVICE_PIECE_BYTES
    aligned = tensor.data_ptr() % _WORD_BYTES == begin % _WORD_BYTES == 0
    if not (tensor.is_cuda and at_once and aligned):
        return _sums_in_parts(bytes_of(tensor))
    words = torch.empty(0, dtype=torch.int64, device=tensor.device).set_(
        tensor.untyped_storage(), begin // _WORD_BYTES, (nbytes // BLOCK_BYTES, _COLUMNS), (_COLUMNS, 1)
    )
    return [words.sum(dim=0), words.sum(dim=1)]


def _words(data: torch.Tensor) -> Iterable[torch.Tensor]:
    """The bytes as rows of words, in pieces."""
    if not data.numel():
        return
    aligned = data.data_ptr() % _WORD_BYTES == data.storage_offset() % _WORD_BYTES == 0
    if not aligned:
        size = _COPIED_PIECE_BYTES
    else:
        size = _HOST_PIECE_BYTES if data.device.type == "cpu" else _DEVICE_PIECE_BYTES
    for piece in torch.split(data, size):
        yield (piece if aligned else piece.clone()).view(torch.int64).view(-1, _COLUMNS)


def _hash(nbytes: int, sums: torch.Tensor) -> str:
    digest = hashlib.blake2b(nbytes.to_bytes(8, "little"), digest_size=16)
    digest.update(memory_of(sums))
    return digest.hexdigest()
