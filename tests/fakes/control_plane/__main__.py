"""Run the scheduler and controllers for an API server that has none: `python -m tests.fakes.control_plane --kubeconfig FILE`."""

import argparse
import asyncio
import sys

from tests.fakes.control_plane import controlling, everything
from tests.fakes.kube_calls import calling


async def _run(options: argparse.Namespace) -> None:
    async with (
        calling(options.kubeconfig, options.context) as calls,
        controlling(calls, everything(options.node_grace)),
    ):
        sys.stderr.write("controllers run\n")
        await asyncio.Event().wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kubeconfig", default="", help="default: as kubectl finds it")
    options.add_argument("--context", default="")
    options.add_argument(
        "--node-grace", type=float, default=50.0, help="seconds until a silent node counts as lost"
    )
    try:
        asyncio.run(_run(options.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)


main()
