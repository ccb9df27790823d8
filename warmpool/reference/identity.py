"""What an engine computes with: what an expectation has to belong to before its tokens say anything.

The digest is over the weights as they were loaded, in the number format that is computed in, and by their names in the checkpoint: the
same for an engine and for whoever recorded the expectation, however the files are cut. It is taken where the weights lie, before they
are turned, and takes two passes over them at the speed of their memory (`loader.digest`). Of a tensor-parallel group each rank
digests its parts, and the digest of the whole is over those, in the order of ranks: a tensor that one rank alone has wrong changes it.
"""

import hashlib
from collections.abc import Mapping, Sequence

import torch

from loader.digest import digest_tensors
from warmpool.expectations import Ownership
from warmpool.reference.version import VERSION

_DIGEST_BYTES = 16


@torch.inference_mode()
def identify(parameters: Mapping[str, torch.Tensor]) -> Ownership:
    """Return what computes with these weights.

    Args:
        parameters: all weights by their names in the checkpoint, loaded and not turned yet.
    """
    dtype = next(iter(parameters.values())).dtype
    return ownership_of([weights_digest(parameters)], dtype)


@torch.inference_mode()
def weights_digest(parameters: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of one rank's weights, in hexadecimal.

    Args:
        parameters: its parts of all weights by their names in the checkpoint, loaded and not turned yet.
    """
    return _over(digests_of(parameters))


def ownership_of(digests: Sequence[str], dtype: torch.dtype) -> Ownership:
    """Return what a group computes with.

    Args:
        digests: of each rank's weights, in the order of ranks.
        dtype: what is computed in.
    """
    ranked = {f"{rank:04d}": digest for rank, digest in enumerate(digests)}
    return Ownership(
        weights_digest=digests[0] if len(digests) == 1 else _over(ranked),
        engine_version=VERSION,
        dtype=str(dtype).removeprefix("torch."),
        tensor_parallel_size=len(digests),
    )


def digests_of(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, str]:
    """Return the loader's digest of every tensor; of those whose bytes lie apart that of a copy, which is made for one at a time."""
    together = {name: tensor for name, tensor in tensors.items() if tensor.is_contiguous()}
    digests = digest_tensors(together)
    for name in tensors.keys() - together.keys():
        digests |= digest_tensors({name: tensors[name].contiguous()})
    return digests


def _over(digests: Mapping[str, str]) -> str:
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(digests):
        whole.update(f"{name} {digests[name]}\n".encode())
    return whole.hexdigest()
