import hashlib
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader import DigestMismatch, Part, take_parts
from loader.digest import BLOCK_BYTES, Running, digest_tensors
from loader.manifest import Manifest, describe, parse_manifest, render_manifest
from loader.proof import digest_source, verify_resident

WORD = 8


def data(nbytes: int, seed: int = 1) -> torch.Tensor:
    raw = bytearray(random.Random(seed).randbytes(nbytes) + b"\0")
    return torch.frombuffer(raw, dtype=torch.uint8)[:nbytes]


def digest(tensor: torch.Tensor) -> str:
    return digest_tensors({"x": tensor})["x"]


def test_the_algorithm_stays_what_it_is() -> None:
    """A manifest is for years: another implementation of the documented formula comes to the same."""
    raw = bytes(range(256)) * 100
    filled = raw + bytes(-len(raw) % 8192)
    words = [int.from_bytes(filled[at : at + 8], "little") for at in range(0, len(filled), 8)]
    columns = [sum(words[column::1024]) % 2**64 for column in range(1024)]
    rows = [sum(words[row : row + 1024]) % 2**64 for row in range(0, len(words), 1024)]
    expected = hashlib.blake2b(len(raw).to_bytes(8, "little"), digest_size=16)
    for total in columns + rows:
        expected.update(total.to_bytes(8, "little"))
    assert digest(torch.frombuffer(bytearray(raw), dtype=torch.uint8)) == expected.hexdigest()


@pytest.mark.parametrize(
    "nbytes", [1, 7, 8, 9, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 5]
)
def test_every_single_bit_counts(nbytes: int) -> None:
    tensor = data(nbytes)
    seen = {digest(tensor)}
    places = range(nbytes) if nbytes < 16 else random.Random(2).sample(range(nbytes), 16)
    for place in places:
        for bit in range(8):
            tensor[place] ^= 1 << bit
            seen.add(digest(tensor))
            tensor[place] ^= 1 << bit
    assert len(seen) == 1 + 8 * len(places)


def test_the_last_byte_of_padding_is_no_zero_byte() -> None:
    assert digest(torch.zeros(9, dtype=torch.uint8)) != digest(torch.zeros(10, dtype=torch.uint8))


@settings(max_examples=40)
@given(
    st.integers(0, 15), st.integers(0, 15), st.sampled_from([WORD, 64, 4096, BLOCK_BYTES, 2 * BLOCK_BYTES])
)
def test_blocks_that_have_changed_places_are_seen(first: int, second: int, size: int) -> None:
    tensor = data(16 * 2 * BLOCK_BYTES)
    before = digest(tensor)
    blocks = tensor.view(-1, size)
    kept = blocks[first].clone()
    blocks[first] = blocks[second]
    blocks[second] = kept
    assert (digest(tensor) == before) == (first == second)


@pytest.mark.parametrize("size", [WORD, 512, 4096, BLOCK_BYTES])
def test_a_block_that_is_zeroed_or_repeated_is_seen(size: int) -> None:
    tensor = data(32 * BLOCK_BYTES)
    before = digest(tensor)
    zeroed, repeated = tensor.clone(), tensor.clone()
    zeroed.view(-1, size)[3].zero_()
    repeated.view(-1, size)[3] = repeated.view(-1, size)[2]
    assert len({before, digest(zeroed), digest(repeated)}) == 3


def test_memory_that_begins_on_no_word_has_the_same_digest() -> None:
    base = data(20 * BLOCK_BYTES + 100)
    assert digest(base[3:]) == digest(base[3:].clone())


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, BLOCK_BYTES))
def test_pieces_come_to_the_same_as_the_whole(pieces: list[int], rest: int) -> None:
    tensor = data(sum(pieces) * BLOCK_BYTES + rest)
    running = Running()
    start = 0
    for blocks in pieces:
        running.add(tensor[start : start + blocks * BLOCK_BYTES])
        start += blocks * BLOCK_BYTES
    running.add(tensor[start:])
    assert running.hexdigest() == digest(tensor)


def test_a_piece_after_a_broken_block_is_a_mistake() -> None:
    running = Running()
    running.add(data(5))
    with pytest.raises(ValueError, match="last piece"):
        running.add(data(5))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    tensors = {
        "a": data(6_000_000).view(torch.bfloat16).reshape(1000, 3000),
        "b": data(6_000_000, seed=2).view(torch.bfloat16).reshape(1000, 3000),
        "small": data(10),
        "none": torch.empty(0),
    }
    safetensors.torch.save_file(tensors, path)
    return path


@pytest.fixture
def manifest(weights: Path) -> Manifest:
    checkpoint = loader.open_checkpoint(weights)
    return describe(checkpoint, digest_source(checkpoint))


def test_files_and_memory_have_the_same_digests(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    loaded = loader.load(checkpoint).tensors
    assert digest_source(checkpoint, run=loader.Run(threads=2)) == digest_tensors(loaded)


def test_a_manifest_survives_being_written(manifest: Manifest) -> None:
    assert parse_manifest(render_manifest(manifest).encode(), file="m") == manifest


def test_a_load_is_proved_where_it_lands(weights: Path, manifest: Manifest) -> None:
    result = loader.load(loader.open_checkpoint(weights), manifest=manifest)
    assert (result.proven, result.unproven) == ({"a", "b", "small", "none"}, frozenset())


def test_without_a_manifest_nothing_is_called_proven(weights: Path) -> None:
    assert loader.load(loader.open_checkpoint(weights)).proven == frozenset()


def test_a_changed_byte_in_the_file_is_found_by_a_load(weights: Path, manifest: Manifest) -> None:
    raw = bytearray(weights.read_bytes())
    raw[-5000] ^= 4
    weights.write_bytes(raw)
    with pytest.raises(DigestMismatch, match="1 of 4 tensors differ") as caught:
        loader.load(loader.open_checkpoint(weights), manifest=manifest)
    assert len(caught.value.tensors) == 1


def test_another_header_is_found_before_anything_is_read(weights: Path, manifest: Manifest) -> None:
    raw = weights.read_bytes()
    weights.write_bytes(raw.replace(b'"small"', b'"smell"'))
    with pytest.raises(DigestMismatch, match="another length or header"):
        loader.load(loader.open_checkpoint(weights), manifest=manifest)


def test_what_cannot_be_compared_is_told(weights: Path, manifest: Manifest) -> None:
    checkpoint = take_parts(loader.open_checkpoint(weights), {"a": Part(dim=0, start=0, stop=500)})
    into = {
        "a": torch.empty(500, 3000, dtype=torch.bfloat16),
        "b": torch.empty(1000, 3000),
        "small": torch.empty(10, dtype=torch.uint8),
        "none": torch.empty(0),
    }
    result = loader.load(checkpoint, into=into, convert=True, manifest=manifest)
    assert (result.proven, result.unproven) == ({"small", "none"}, {"a", "b"})


@pytest.mark.parametrize("with_manifest", [True, False], ids=["manifest", "source"])
def test_resident_weights_are_proved_again(weights: Path, manifest: Manifest, *, with_manifest: bool) -> None:
    checkpoint = loader.open_checkpoint(weights)
    tensors = loader.load(checkpoint).tensors
    expected = manifest if with_manifest else None
    proof = verify_resident(checkpoint, tensors, manifest=expected)
    assert (proof.proven, proof.nbytes) == (tensors.keys(), checkpoint.total_bytes)
    tensors["b"].view(torch.uint8)[17, 5] ^= 1
    with pytest.raises(DigestMismatch) as caught:
        verify_resident(checkpoint, tensors, manifest=expected)
    assert caught.value.tensors == ("b",)


def test_tensors_that_have_changed_places_are_seen(weights: Path, manifest: Manifest) -> None:
    checkpoint = loader.open_checkpoint(weights)
    tensors = dict(loader.load(checkpoint).tensors)
    tensors["a"], tensors["b"] = tensors["b"], tensors["a"]
    with pytest.raises(DigestMismatch) as caught:
        verify_resident(checkpoint, tensors, manifest=manifest)
    assert caught.value.tensors == ("a", "b")


def test_parts_are_proved_against_their_source(weights: Path) -> None:
    checkpoint = take_parts(
        loader.open_checkpoint(weights),
        {"a": Part(dim=1, start=1000, stop=2000), "b": Part(dim=0, start=10, stop=20)},
    )
    tensors = loader.load(checkpoint).tensors
    assert verify_resident(checkpoint, tensors).proven == tensors.keys()
    tensors["a"][999, 999] += 1
    with pytest.raises(DigestMismatch):
        verify_resident(checkpoint, tensors)


def test_only_some_tensors_may_be_asked_for(weights: Path, manifest: Manifest) -> None:
    checkpoint = loader.open_checkpoint(weights)
    tensors = loader.load(checkpoint.only(["b"])).tensors
    assert verify_resident(checkpoint, tensors, manifest=manifest).proven == {"b"}


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        pytest.param({"z": torch.zeros(1)}, "not in the checkpoint", id="unknown"),
        pytest.param(
            {"a": torch.zeros(3000, 1000, dtype=torch.bfloat16).T}, "not contiguous", id="transposed"
        ),
    ],
)
def test_tensors_that_have_no_counterpart(weights: Path, tensors: dict[str, torch.Tensor], what: str) -> None:
    with pytest.raises(loader.DestinationMismatch, match=what):
        verify_resident(loader.open_checkpoint(weights), tensors)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "no manifest of format"),
        (b'{"format":1,"format":2}', "same name"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_a_manifest_that_is_none(raw: bytes, what: str) -> None:
    with pytest.raises(loader.ManifestInvalid, match=what):
        parse_manifest(raw, file="m")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (('"tensors"', '"tensor"'), "its fields"),
        (('"small": "', '"small": "x'), "is no digest"),
        (('"bytes": ', '"bytes": -0.5, "x": '), "no length and digest"),
    ],
)
def test_a_manifest_with_a_wrong_value(manifest: Manifest, change: tuple[str, str], what: str) -> None:
    with pytest.raises(loader.ManifestInvalid, match=what):
        parse_manifest(render_manifest(manifest).replace(*change).encode(), file="m")
