"""The manifest of a checkpoint: what its headers and tensors must be, so that weights can be proved where they lie.

``model.emberpool.json`` beside the shards, written by ``python -m loader digest``::

    {"format": "emberpool.dev/manifest/v1", "algorithm": "block-sums-blake2b-1",
     "files": {"model.safetensors": {"bytes": 1234, "header": "…"}},
     "tensors": {"model.embed_tokens.weight": "…"}}

`header` is BLAKE2b (16 bytes, hexadecimal) of the file's first bytes up to the payload, so names, dtypes, shapes and ranges
can't change either. How a tensor's digest is made is told in `loader.digest`. Whoever signs this file signs the weights,
as far as faults go: block sums find faults of storage, memory and copying, and somebody who forges tensors on purpose can
keep them. Pure.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from loader.checkpoint import Checkpoint, Shard, parse_json
from loader.errors import DigestMismatch, ManifestInvalid, shown, some

MANIFEST_FILE = "model.emberpool.json"
FORMAT = "emberpool.dev/manifest/v1"
ALGORITHM = "block-sums-blake2b-1"
_HEX = re.compile(r"[0-9a-f]{32}")
_FIELDS = frozenset({"format", "algorithm", "files", "tensors"})
_AGAIN = "write it again from a checkpoint that you trust: `python -m loader digest DIR`"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What a manifest says about a shard.

    Attributes:
        nbytes: its length.
        header: digest of everything before its payload.
    """

    nbytes: int
    header: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint must be.

    Attributes:
        files: by name of the shard.
        tensors: digest by name of the tensor.
    """

    files: Mapping[str, FileRecord]
    tensors: Mapping[str, str]


def describe(checkpoint: Checkpoint, digests: Mapping[str, str]) -> Manifest:
    """The manifest of a whole checkpoint.

    Args:
        checkpoint: all its tensors, whole.
        digests: by tensor.
    """
    files = {file: _describe_shard(shard) for file, shard in checkpoint.shards.items()}
    return Manifest(files=MappingProxyType(files), tensors=MappingProxyType(dict(sorted(digests.items()))))


def render_manifest(manifest: Manifest) -> str:
    """The manifest as text; the same for the same checkpoint."""
    document = {
        "format": FORMAT,
        "algorithm": ALGORITHM,
        "files": {
            file: {"bytes": record.nbytes, "header": record.header} for file, record in manifest.files.items()
        },
        "tensors": dict(manifest.tensors),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def parse_manifest(raw: bytes, *, file: str) -> Manifest:
    """Parse a manifest.

    Raises:
        ManifestInvalid: not JSON, ambiguous, of an unknown kind, or a value is not what it should be.
    """
    document = _object(parse_json(raw, file=file, error=ManifestInvalid, hint=_AGAIN), "the manifest", file)
    if document.get("format") != FORMAT or document.get("algorithm") != ALGORITHM:
        raise ManifestInvalid(
            f"no manifest of format {FORMAT} and algorithm {ALGORITHM}", file=file, hint=_AGAIN
        )
    if document.keys() != _FIELDS:
        raise ManifestInvalid(
            f"its fields are {some(sorted(document))} and should be {some(sorted(_FIELDS))}",
            file=file,
            hint=_AGAIN,
        )
    tensors = _object(document["tensors"], "tensors", file)
    for name, digest in tensors.items():
        if not _is_digest(digest):
            raise ManifestInvalid(
                f"the digest of tensor {shown(name)} is no digest", file=file, tensor=name, hint=_AGAIN
            )
    files = {
        name: _record(name, fields, file)
        for name, fields in _object(document["files"], "files", file).items()
    }
    return Manifest(
        files=MappingProxyType(files),
        tensors=MappingProxyType({name: str(digest) for name, digest in tensors.items()}),
    )


def check_headers(checkpoint: Checkpoint, manifest: Manifest) -> None:
    """See that shards and tensors are those that the manifest was written for, without reading a tensor.

    Raises:
        DigestMismatch: a shard's length or header differs, or it is not listed.
    """
    for file, shard in checkpoint.shards.items():
        if manifest.files.get(file) != _describe_shard(shard):
            known = file in manifest.files
            raise DigestMismatch(
                "this shard has another length or header than in the manifest"
                if known
                else "this shard is not in the manifest",
                file=f"{checkpoint.root}/{file}",
                tensors=(),
                hint="fetch the checkpoint and its manifest again, both from the same source",
            )


def compare(digests: Mapping[str, str], checkpoint: Checkpoint, manifest: Manifest) -> None:
    """See that these tensors are those of the manifest.

    Args:
        digests: by tensor.
        checkpoint: which has them all; for messages.
        manifest: what they must be.

    Raises:
        DigestMismatch: one or more differ, or aren't listed.
    """
    wrong = tuple(name for name, digest in digests.items() if manifest.tensors.get(name) != digest)
    if not wrong:
        return
    raise DigestMismatch(
        f"{len(wrong)} of {len(digests)} tensors differ from the manifest: {some(list(wrong))}",
        file=f"{checkpoint.root}/{checkpoint.tensors[wrong[0]].file}",
        tensors=wrong,
        hint="`python -m loader verify --values` tells whether the files are wrong; if they are right, memory or link is",
    )


def provable(checkpoint: Checkpoint) -> frozenset[str]:
    """Names of the tensors that are there whole: a manifest knows no digests of parts."""
    whole = {spec.name: spec.shape for shard in checkpoint.shards.values() for spec in shard.header.tensors}
    return frozenset(name for name, entry in checkpoint.tensors.items() if whole.get(name) == entry.shape)


def _describe_shard(shard: Shard) -> FileRecord:
    return FileRecord(nbytes=shard.identity.size_bytes, header=shard.header_digest)


def _object(value: object, what: str, file: str) -> dict[str, object]:
    if type(value) is not dict:
        raise ManifestInvalid(f"{what} is no JSON object", file=file, hint=_AGAIN)
    return value


def _record(name: str, value: object, file: str) -> FileRecord:
    fields = _object(value, f"the entry of {shown(name)}", file)
    nbytes, header = fields.get("bytes"), fields.get("header")
    if fields.keys() != {"bytes", "header"} or type(nbytes) is not int or not _is_digest(header):
        raise ManifestInvalid(f"the entry of {shown(name)} is no length and digest", file=file, hint=_AGAIN)
    return FileRecord(nbytes=nbytes, header=str(header))


def _is_digest(value: object) -> bool:
    return type(value) is str and _HEX.fullmatch(value) is not None
