"""Which part of each tensor of a checkpoint a rank of a tensor-parallel group has. PURE.

Matrices whose outputs are divided are cut by rows, and each rank's part is one run of bytes; those that take divided inputs are cut by
columns, and read as one short run per row. Norms are whole on every rank.
"""

from typing import Final

import loader
from loader.checkpoint import Checkpoint
from warmpool.reference.config import LlamaConfig

_ROWS: Final = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
_COLUMNS: Final = ("o_proj", "down_proj")


def split_dimension(name: str) -> int | None:
    """Return the dimension by which ranks share a tensor; None if each has all of it.

    Args:
        name: the tensor's, in the checkpoint.
    """
    module = name.removesuffix(".weight").rpartition(".")[2]
    if module in _ROWS:
        return 0
    return 1 if module in _COLUMNS else None


def take_share(checkpoint: Checkpoint, config: LlamaConfig, rank: int, ranks: int) -> Checkpoint:
    """Return the checkpoint with this rank's parts alone: nothing else of it is read.

    Args:
        checkpoint: with the tensors that the model wants.
        config: of the whole model; `LlamaConfig.share` has seen that it can be divided.
        rank: this one's number.
        ranks: how many there are.
    """
    if ranks == 1:
        return checkpoint
    parts = {
        name: loader.rank_part(checkpoint.tensors[name], dim=dim, rank=rank, ranks=ranks)
        for name in config.tensor_shapes()
        if (dim := split_dimension(name)) is not None
    }
    return loader.take_parts(checkpoint, parts)
