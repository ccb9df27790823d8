"""`python -m warmpool.nodehealth --socket PATH`: the node agent of one machine without Kubernetes, as `emberpool local` runs it."""

import argparse
import logging
import sys
from pathlib import Path

from warmpool.errors import StartFailed
from warmpool.nodehealth.app import NodeAgentOptions, NoGpu, run
from warmpool.nodehealth.local import WITHOUT_GPU
from warmpool.nodehealth.nvml import NvmlAbsent, driver


def main() -> int:
    """Read the command line and run; the exit status is 0, 2 if it can't start as it was told, 3 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m warmpool.nodehealth", description="The node agent.")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="its Unix socket")
    parser.add_argument(
        "--latches", type=Path, metavar="FILE", help="what is remembered of GPUs (default: beside the socket)"
    )
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        latches = options.latches or options.socket.with_name("gpu-health.json")
        run(NodeAgentOptions(socket=options.socket, latches=latches), driver())
    except (NoGpu, NvmlAbsent) as error:
        sys.stderr.write(f"error: no GPU: {error}\n")
        return WITHOUT_GPU
    except StartFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
