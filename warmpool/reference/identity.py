"""What an engine computes with: what an expectation has to belong to before its tokens say anything.

The digest is over the weights as they were loaded, in the number format that is computed in, and by their names in the checkpoint: the
same for an engine and for whoever recorded the expectation, however the files are cut. It is taken where the weights lie, before they
are turned, and takes two passes over them at the speed of their memory (`loader.digest`).
"""

import hashlib
from collections.abc import Mapping

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
    digests = digest_tensors(parameters)
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(digests):
        whole.update(f"{name} {digests[name]}\n".encode())
    dtype = next(iter(parameters.values())).dtype
    return Ownership(
        weights_digest=whole.hexdigest(),
        engine_version=VERSION,
        dtype=str(dtype).removeprefix("torch."),
        tensor_parallel_size=1,
    )
