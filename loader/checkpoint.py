"""A checkpoint: tensors by name, each with the file and the bytes that it lies in.

Puts one or several parsed headers, an index and a config together and refuses what does not agree. Pure data and
functions: which files exist and what is in them comes as arguments.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigInvalid,
    FormatUnsupported,
    IndexInvalid,
    ShardMissing,
    TensorDuplicated,
    TensorMissing,
    TensorUnlisted,
    shown,
    some,
)
from loader.header import Dtype, Header

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
SUFFIX = ".safetensors"
REFUSED_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".npz", ".h5", ".msgpack"})

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_CONVERT = (
    "convert it to safetensors where it is safe to open; pickle formats run code when they are opened, so they are "
    "never loaded here"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Bytes of a part of a tensor that lie apart: runs of equal length at equal distance.

    Attributes:
        nbytes: length of each run.
        pitch: distance from the start of one to the start of the next, in bytes; more than nbytes.
        count: how many; at least two.
    """

    nbytes: int
    pitch: int
    count: int


class TensorEntry(NamedTuple):
    """Where one tensor lies, or a part of one.

    Attributes:
        name: its name in the checkpoint.
        dtype: element type.
        shape: dimensions in elements.
        file: name of the shard, relative to the checkpoint's root.
        begin: first byte, from the start of the file.
        end: byte after the last.
        runs: which bytes between the two belong to it; None for all.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int
    runs: Runs | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes, without what lies between its runs."""
        return self.runs.nbytes * self.runs.count if self.runs else self.end - self.begin

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """What lies together in the file: first byte, byte after the last, and where it starts in the tensor."""
        if self.runs is None:
            yield self.begin, self.end, 0
            return
        for number in range(self.runs.count):
            begin = self.begin + number * self.runs.pitch
            yield begin, begin + self.runs.nbytes, number * self.runs.nbytes


_new_entry: Callable[[Iterable[object]], TensorEntry] = partial(tuple.__new__, TensorEntry)
"""From values in the order of the fields; `TensorEntry._make` does the same at three times the cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """What tells that a file is still the one whose header was read.

    Attributes:
        size_bytes: its length.
        mtime_ns: time of its last change, in nanoseconds since the epoch.
        device: number of the file system.
        inode: number of the file there.
    """

    size_bytes: int
    mtime_ns: int
    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a checkpoint.

    Attributes:
        file: its name, relative to the checkpoint's root.
        header: its parsed header.
        identity: the file as it was when the header was read.
        header_digest: BLAKE2b of the file's first bytes up to the payload, 16 bytes in hexadecimal.
    """

    file: str
    header: Header
    identity: FileIdentity
    header_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A parsed ``model.safetensors.index.json``.

    Attributes:
        weight_map: tensor name to name of the shard.
        declared_bytes: the total that its writer noted, or None. Many writers get it wrong, so nothing relies on it.
    """

    weight_map: Mapping[str, str]
    declared_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that passed every check that needs no payload byte.

    Attributes:
        root: absolute path of the directory that holds the shards.
        path: absolute path that was opened: the root, or one file in it.
        shards: by file name, in order of name.
        tensors: by name, in the order of their bytes, shard after shard.
        config: the parsed config.json; empty where there is none.
        metadata: what the shards' headers say about themselves, where they don't contradict each other.
        declared_bytes: the index's ``total_size``, or None.
    """

    root: str
    path: str
    shards: Mapping[str, Shard]
    tensors: Mapping[str, TensorEntry]
    config: Mapping[str, object]
    metadata: Mapping[str, str]
    declared_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """Payload of all tensors, in bytes."""
        return sum(entry.nbytes for entry in self.tensors.values())

    @property
    def identities(self) -> dict[str, FileIdentity]:
        """Which file each shard is."""
        return {file: shard.identity for file, shard in self.shards.items()}

    def matching(self, patterns: Collection[str]) -> "Checkpoint":
        """The same checkpoint with only the tensors whose names match a shell pattern such as ``model.layers.3.*``.

        Raises:
            TensorMissing: a pattern matches nothing.
        """
        names: set[str] = set()
        for pattern in patterns:
            matched = [name for name in self.tensors if fnmatchcase(name, pattern)]
            if not matched:
                raise TensorMissing(
                    f"no tensor's name matches {shown(pattern)}",
                    file=self.root,
                    hint="`python -m loader inspect` lists the names",
                )
            names.update(matched)
        return self.only(names)

    def only(self, names: Collection[str]) -> "Checkpoint":
        """The same checkpoint with only these tensors; a load then reads nothing else.

        Raises:
            TensorMissing: one of the names is not in the checkpoint.
        """
        absent = sorted(set(names) - self.tensors.keys())
        if absent:
            raise TensorMissing(
                f"no tensor {some(absent)} among the {len(self.tensors)} of this checkpoint",
                file=self.root,
                tensor=absent[0],
                hint="`python -m loader inspect` lists the names",
            )
        wanted = frozenset(names)
        tensors = {name: entry for name, entry in self.tensors.items() if name in wanted}
        files = {entry.file for entry in tensors.values()}
        return replace(
            self,
            tensors=MappingProxyType(tensors),
            shards=MappingProxyType({file: shard for file, shard in self.shards.items() if file in files}),
        )


def parse_index(raw: bytes, *, file: str) -> Index:
    """Parse an index.

    Raises:
        IndexInvalid: not JSON, ambiguous, or a shard's name that is anything but a plain file name.
        FormatUnsupported: it lists files that are not safetensors.
    """
    document = _json_object(raw, file, IndexInvalid)
    weight_map = document.get("weight_map")
    if type(weight_map) is not dict or not weight_map:
        raise IndexInvalid(
            "no weight_map with at least one tensor",
            file=file,
            hint="fetch the index again with its checkpoint",
        )
    checked: set[str] = set()  # few names, of many tensors
    for name, shard in weight_map.items():
        if type(shard) is not str or shard not in checked:
            checked.add(_checked_shard_name(name, shard, file))
    about = document.get("metadata")
    declared = about.get("total_size") if type(about) is dict else None
    return Index(
        weight_map=MappingProxyType(weight_map),
        declared_bytes=declared if type(declared) is int else None,
    )


def parse_config(raw: bytes, *, file: str) -> Mapping[str, object]:
    """Parse config.json.

    Raises:
        ConfigInvalid: it is no JSON object, or an ambiguous one.
    """
    return MappingProxyType(_json_object(raw, file, ConfigInvalid))


def select_shards(present: Collection[str], index: Index | None, *, root: str) -> tuple[str, ...]:
    """Which of a directory's files make up the checkpoint.

    An index decides where there is one. Without one it is ``model.safetensors``, else the only safetensors file, else
    a complete numbered set (``x-00001-of-00003.safetensors`` …). Other files are left alone.

    Args:
        present: names of the files in the directory.
        index: the parsed index, or None.
        root: the directory, for messages.

    Raises:
        ShardMissing: a file of the set is not there.
        FormatUnsupported: the directory has weights in refused formats only.
        CheckpointNotFound: there are no weights, or it is not clear which.
    """
    if index is not None:
        _check_listed(present, index, root)
        return tuple(sorted(set(index.weight_map.values())))
    candidates = sorted(name for name in present if name.endswith(SUFFIX))
    if SINGLE_FILE in candidates:
        return (SINGLE_FILE,)
    if not candidates:
        raise _nothing_to_load(present, root)
    numbered = _numbered_set(candidates, root)
    if numbered:
        return numbered
    if len(candidates) == 1:
        return (candidates[0],)
    raise CheckpointNotFound(
        f"several safetensors files and no {INDEX_FILE} that says which belong together: {some(candidates)}",
        file=root,
        hint="pass the path of one file, or add the index",
    )


def assemble(
    shards: Iterable[Shard],
    *,
    root: str,
    path: str | None = None,
    index: Index | None = None,
    config: Mapping[str, object] | None = None,
) -> Checkpoint:
    """Put shards together and check them against each other and the index.

    Args:
        shards: all of them.
        root: the directory.
        path: what was opened, if not the directory.
        index: the parsed index, or None.
        config: the parsed config.json, or None.

    Raises:
        TensorDuplicated: two shards hold the same name.
        TensorMissing: the index places a tensor in a shard that doesn't hold it.
        TensorUnlisted: a shard holds a tensor that the index places elsewhere or not at all.
    """
    by_file = {shard.file: shard for shard in sorted(shards, key=lambda shard: shard.file)}
    tensors: dict[str, TensorEntry] = {}
    for shard in by_file.values():
        entries = _entries(shard)
        twice = next((name for name in entries if name in tensors), None)
        if twice is not None:
            raise TensorDuplicated(
                f"tensor {shown(twice)} is in {tensors[twice].file} too",
                file=f"{root}/{shard.file}",
                tensor=twice,
                hint="files of two checkpoints are mixed: keep the files of one",
            )
        tensors |= entries
    if index is not None:
        _check_index(tensors, index, root)
    return Checkpoint(
        root=root,
        path=path or root,
        shards=MappingProxyType(by_file),
        tensors=MappingProxyType(tensors),
        config=config if config is not None else MappingProxyType({}),
        metadata=MappingProxyType(_common_metadata(by_file.values())),
        declared_bytes=index.declared_bytes if index is not None else None,
    )


def parse_json(raw: bytes, *, file: str, error: type[CheckpointError], hint: str) -> object:
    """Parse JSON of which no two readers can understand different things.

    Args:
        raw: the document.
        file: its name, for messages.
        error: what it is if it is wrong.
        hint: what to do then.

    Raises:
        CheckpointError: of the type asked for: it is no JSON, or an object has two members of the same name.
    """
    try:
        document: object = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as fault:
        raise error(f"not valid JSON: {fault}", file=file, hint=hint) from None
    return document


def refuse_format(path: str) -> None:
    """Refuse a path whose name says that it is no safetensors file.

    Raises:
        FormatUnsupported: the suffix is one of a refused format.
    """
    if any(path.lower().endswith(suffix) for suffix in REFUSED_SUFFIXES):
        raise FormatUnsupported("not a safetensors file", file=path, hint=_CONVERT)


def _entries(shard: Shard) -> dict[str, TensorEntry]:
    base, specs = shard.header.payload_begin, shard.header.tensors
    names = [spec.name for spec in specs]
    columns = (
        [spec.dtype for spec in specs],
        [spec.shape for spec in specs],
        repeat(shard.file),
        [base + spec.begin for spec in specs],
        [base + spec.end for spec in specs],
        repeat(None),  # no runs: the whole tensor
    )
    return dict(zip(names, map(_new_entry, zip(names, *columns, strict=False)), strict=True))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has two members of the same name")
    return members


def _json_object(raw: bytes, file: str, error: type[IndexInvalid | ConfigInvalid]) -> dict[str, object]:
    document = parse_json(raw, file=file, error=error, hint="fetch this file again")
    if type(document) is not dict:
        raise error("no JSON object", file=file, hint="fetch this file again")
    return document


def _checked_shard_name(tensor: str, shard: object, file: str) -> str:
    if type(shard) is not str:
        raise IndexInvalid(f"the shard of tensor {shown(tensor)} is no file name", file=file, tensor=tensor)
    if not shard or any(character in shard for character in "/\\\0") or shard.startswith("."):
        raise IndexInvalid(
            f"the shard {shown(shard)} of tensor {shown(tensor)} is no plain file name",
            file=file,
            tensor=tensor,
            hint="shards lie beside their index; a name that leads elsewhere is refused: get the checkpoint from a "
            "source you trust",
        )
    refuse_format(shard)
    if not shard.endswith(SUFFIX):
        raise FormatUnsupported(
            f"the shard {shown(shard)} of tensor {shown(tensor)} is no {SUFFIX} file",
            file=file,
            hint=_CONVERT,
        )
    return shard


def _check_listed(present: Collection[str], index: Index, root: str) -> None:
    missing = sorted(set(index.weight_map.values()) - set(present))
    if not missing:
        return
    held = Counter(index.weight_map.values())
    more = f"; {len(missing) - 1} more shards are missing too" if len(missing) > 1 else ""
    raise ShardMissing(
        f"shard {missing[0]} is not there; by the index it holds {held[missing[0]]} of "
        f"{len(index.weight_map)} tensors{more}",
        file=root,
        hint="the download is not complete: fetch the missing files",
    )


def _numbered_set(candidates: Collection[str], root: str) -> tuple[str, ...]:
    """The complete numbered set that all candidates belong to; empty where they aren't one."""
    matches = [match for name in candidates if (match := _NUMBERED.fullmatch(name))]
    sets = {(match["stem"], match["total"]) for match in matches}
    if len(matches) != len(candidates) or len(sets) != 1:
        return ()
    ((stem, total),) = sets
    numbers = {int(match["number"]) for match in matches}
    absent = next((number for number in range(1, int(total) + 1) if number not in numbers), None)
    if absent is not None:
        raise ShardMissing(
            f"shard {stem}-{absent:05d}-of-{total}{SUFFIX} is not there; {len(numbers)} of {int(total)} are",
            file=root,
            hint="the download is not complete: fetch the missing files",
        )
    return tuple(candidates)


def _nothing_to_load(present: Collection[str], root: str) -> CheckpointNotFound | FormatUnsupported:
    refused = sorted(
        name for name in present if any(name.lower().endswith(suffix) for suffix in REFUSED_SUFFIXES)
    )
    if refused:
        return FormatUnsupported(f"no safetensors file, only {some(refused)}", file=root, hint=_CONVERT)
    return CheckpointNotFound(
        "no safetensors file in this directory", file=root, hint="pass the directory that holds *.safetensors"
    )


def _check_index(tensors: Mapping[str, TensorEntry], index: Index, root: str) -> None:
    if index.weight_map == {name: entry.file for name, entry in tensors.items()}:
        return
    for name, file in index.weight_map.items():
        if name not in tensors:
            raise TensorMissing(
                f"tensor {shown(name)} is not in this shard, where the index places it",
                file=f"{root}/{file}",
                tensor=name,
                hint="index and shards are not of the same checkpoint: fetch both again",
            )
    for name, entry in tensors.items():
        listed = index.weight_map.get(name)
        if listed != entry.file:
            places = "does not list" if listed is None else f"places in {listed}"
            raise TensorUnlisted(
                f"this shard holds tensor {shown(name)}, which the index {places}",
                file=f"{root}/{entry.file}",
                tensor=name,
                hint="index and shards are not of the same checkpoint: fetch both again",
            )


def _common_metadata(shards: Iterable[Shard]) -> dict[str, str]:
    values: dict[str, set[str]] = {}
    for shard in shards:
        for key, value in shard.header.metadata.items():
            values.setdefault(key, set()).add(value)
    return {key: next(iter(seen)) for key, seen in values.items() if len(seen) == 1}
