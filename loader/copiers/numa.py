"""Memory and threads on a device's own NUMA node: from the wrong one a copy is a third slower.

Where nothing tells the node, or the kernel refuses, everything stays where it is; only speed is lost.
"""

import ctypes
import os
import platform
from pathlib import Path

import torch

_MBIND = {"x86_64": 237, "aarch64": 235}  # numbers of the system call
_MPOL_PREFERRED = 1
_MASK_BITS = 1024
_LIBC = ctypes.CDLL(None, use_errno=True)


def node_of(device: torch.device, root: Path = Path("/")) -> int | None:
    """The NUMA node that a CUDA device hangs on; None where the system doesn't tell, or has one node only."""
    about = torch.cuda.get_device_properties(device)
    domain, bus, slot = (getattr(about, f"pci_{part}_id", -1) for part in ("domain", "bus", "device"))
    if min(domain, bus, slot) < 0:  # a version of torch that doesn't tell
        return None
    return node_of_address(f"{domain:04x}:{bus:02x}:{slot:02x}.0", root)


def node_of_address(address: str, root: Path = Path("/")) -> int | None:
    """The NUMA node of a PCI device; None where the system doesn't tell, or has one node only.

    Args:
        address: such as ``0000:3b:00.0``.
        root: where /sys is found.
    """
    try:
        node = int((root / f"sys/bus/pci/devices/{address}/numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    # A machine with one node reports -1, or has nothing to choose.
    return node if node >= 0 and (root / "sys/devices/system/node/node1").exists() else None


def cores_of(node: int, root: Path = Path("/")) -> frozenset[int]:
    """The cores of a node; empty where the system doesn't tell."""
    try:
        text = (root / f"sys/devices/system/node/node{node}/cpulist").read_text(encoding="ascii")
    except OSError:
        return frozenset()
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def prefer_node(address: int, nbytes: int, node: int) -> bool:
    """Have memory that nobody has touched yet come from a node, while that has any; whether the kernel agreed."""
    number = _MBIND.get(platform.machine())
    if number is None:
        return False
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_MASK_BITS // width))()
    mask[node // width] = 1 << node % width
    arguments = (ctypes.c_void_p(address), ctypes.c_ulong(nbytes), _MPOL_PREFERRED, mask, _MASK_BITS + 1, 0)
    return int(_LIBC.syscall(number, *arguments)) == 0


def stay_on(node: int) -> None:
    """Keep the calling thread on a node's cores, as far as it may use them."""
    cores = cores_of(node) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)  # 0 is the calling thread
