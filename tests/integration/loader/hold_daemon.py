"""A stage daemon on a device without a GPU: `python -m tests.integration.loader.hold_daemon SOCKET MODEL`."""

import sys
from pathlib import Path

from loader.cuda.nvml import Basis, ContextCost
from loader.cuda.opening import Opened
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.pool import Pool
from tests.unit.loader.stage_device import MemoryFileDevice


def make(socket_path: Path, model: Path) -> tuple[Daemon, Holder]:
    """A daemon that may hold 64 MiB."""
    cost = ContextCost(nbytes=None, basis=Basis.UNKNOWN)
    devices = Devices([Opened(device=MemoryFileDevice(), ordinal=0, context=cost)])
    holder = Holder(Pool(2**26, (str(model),), ready=devices.lock), devices, 2**26)
    return Daemon(holder.pool, socket_path, holder=holder), holder


if __name__ == "__main__":
    daemon, _ = make(*map(Path, sys.argv[1:]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    daemon.serve()
