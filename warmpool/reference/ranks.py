"""What the ranks of a tensor-parallel group do together: sums of their parts, and parts put side by side.

Ranks are processes of one machine. They find each other through a memory file that they have inherited, so that nothing is left behind
however they end, and talk by NCCL between CUDA devices and by gloo on CPU, over the loopback interface where there are sockets at all.

Sums are made in the same order for every element: two numbers have one order only, and more are gathered and added rank by rank. So a
sequence gets the same tokens alone as in any batch here, too; an all-reduce of more than two ranks adds in an order that depends on
the number of rows.
"""

import os
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch import distributed as _distributed

dist: Any = _distributed  # its stubs lack most of what is used here
_PAIR: Final = 2
JOIN_SECONDS: Final = 120.0
"""How long a rank waits for the others, and for each of their steps: a rank that is slower than this is stuck."""
_LOOPBACK: Final = "lo"


class Ranks(Protocol):
    """A group, as one of its ranks sees it."""

    @property
    def rank(self) -> int:
        """This one's number, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def summed(self, part: Tensor) -> Tensor:
        """Return the sum of all ranks' parts, the same on each; `part` may be overwritten."""

    def joined(self, part: Tensor) -> Tensor:
        """Return all ranks' columns side by side, in the order of ranks.

        Args:
            part: (rows, columns) of this one.
        """


class Alone:
    """A rank without others."""

    rank = 0
    size = 1

    def summed(self, part: Tensor) -> Tensor:
        """Return it."""
        return part

    def joined(self, part: Tensor) -> Tensor:
        """Return it."""
        return part


ALONE: Final = Alone()


class Group:
    """Ranks that are processes, or threads, each with its own object.

    Args:
        backend: torch's process group.
        rank: this one's number.
        size: how many there are.
    """

    def __init__(self, backend: Any, rank: int, size: int) -> None:  # noqa: ANN401 (torch's own types aren't told apart)
        self._backend = backend
        self.rank = rank
        self.size = size

    def summed(self, part: Tensor) -> Tensor:
        """Return the sum of all ranks' parts."""
        if self.size == _PAIR:
            self._backend.allreduce([part]).wait()
            return part
        gathered = self._gathered(part)
        total = gathered[0]
        for other in range(1, self.size):
            total.add_(gathered[other])
        return total

    def joined(self, part: Tensor) -> Tensor:
        """Return all ranks' columns side by side."""
        whole: Tensor = self._gathered(part).transpose(0, 1).reshape(len(part), -1)
        return whole

    def abort(self) -> None:
        """Give up what is going on with ranks that don't answer; nothing can be computed together any more. Any thread may call it."""
        self._backend.abort()

    def _gathered(self, part: Tensor) -> Tensor:
        rows, columns = part.shape
        whole = torch.empty((self.size * rows, columns), dtype=part.dtype, device=part.device)
        self._backend._allgather_base(whole, part.contiguous()).wait()  # noqa: SLF001 (what all_gather_into_tensor calls)
        return whole.view(self.size, rows, columns)


def join(meeting: int, rank: int, size: int, device: torch.device) -> Group:
    """Meet the other ranks, and see that sums of all of them come.

    Args:
        meeting: descriptor of an empty memory file that all ranks have.
        rank: this one's number.
        size: how many there are.
        device: where this one computes; it is the calling thread's device already.

    Raises:
        RuntimeError: the others aren't there in time, or can't be reached.
    """
    store = dist.FileStore(f"/proc/self/fd/{meeting}", size)
    backend = _nccl(store, rank, size) if device.type == "cuda" else gloo(store, rank, size)
    group = Group(backend, rank, size)
    total = float(group.summed(torch.ones((1, 1), device=device)))
    if total != size:
        raise RuntimeError(f"the sum of {size} ones over the ranks is {total}")
    return group


def gloo(store: Any, rank: int, size: int) -> Any:  # noqa: ANN401 (as above)
    """Make torch's group for the CPU.

    Args:
        store: torch's, through which the ranks find each other.
        rank: this one's number.
        size: how many there are.
    """
    options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 (there is no other way to name the interface)
    options._devices = [dist.ProcessGroupGloo.create_device(interface=_LOOPBACK)]  # noqa: SLF001
    options._timeout = timedelta(seconds=JOIN_SECONDS)  # noqa: SLF001
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:  # noqa: ANN401 (builds for the CPU don't have the type)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=JOIN_SECONDS)  # noqa: SLF001 (as above)
    return dist.ProcessGroupNCCL(store, rank, size, options)
