"""Run nodes for an API server: `python -m tests.fakes.kubelet --kubeconfig FILE --nodes 4 --gpus 2`.

Pods run as processes of this machine. Images are names of programs: `emberpool` is this tree's own; `--image NAME` adds one whose
containers say what they run, `--image NAME=PROGRAM ARGUMENT…` one with a program of its own, `--any-image` takes all others.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from scaler.errors import ScalerError
from tests.fakes.control_plane import controlling
from tests.fakes.kube_calls import calling
from tests.fakes.kubelet import (
    HOST,
    Images,
    NodeOptions,
    Pace,
    Setting,
    loopback,
    namespaces,
    proxying,
    running,
)
from tests.fakes.kubelet.images import parse_image


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--kubeconfig", type=os.path.abspath, default=os.environ.get("KUBECONFIG"), help="default: KUBECONFIG"
    )
    options.add_argument("--context", default="")
    options.add_argument("--nodes", type=int, default=1)
    options.add_argument("--gpus", type=int, default=1, help="of each node")
    options.add_argument("--name", default="gpu", help="nodes are called NAME-0, NAME-1, …")
    options.add_argument("--image", action="append", default=[], metavar="NAME[=COMMAND]")
    options.add_argument("--any-image", action="store_true")
    options.add_argument(
        "--claim", action="append", default=[], metavar="NAME=FOLDER", help="a PersistentVolumeClaim"
    )
    options.add_argument("--network", choices=("loopback", "namespaces"), default="loopback")
    options.add_argument("--logs", type=Path, default=None, help="folder of containers' logs")
    options.add_argument("--backoff", type=float, default=10.0, help="seconds of a container's first pause")
    options.add_argument(
        "--control-plane",
        action="store_true",
        help="for the tests' API server: run scheduler, controllers and Services as well",
    )
    read = options.parse_args()
    if not read.kubeconfig:
        options.error("--kubeconfig, or KUBECONFIG, must name a cluster: pods need the file too")
    return read


def _claim(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    return name, Path(folder)


async def _run(options: argparse.Namespace) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    known = {**Images().known, **dict(parse_image(each) for each in options.image)}
    async with contextlib.AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pods-")))
        calls = await stack.enter_async_context(calling(options.kubeconfig, options.context))
        network = await stack.enter_async_context(
            namespaces() if options.network == "namespaces" else loopback()
        )
        setting = Setting(
            calls=calls,
            network=network,
            root=root,
            logs=options.logs or root / "logs",
            images=Images(known, HOST if options.any_image else None),
            pace=Pace(backoff=options.backoff),
            claims=dict(map(_claim, options.claim)),
            kubeconfig=Path(options.kubeconfig),
        )
        nodes = [NodeOptions(name=f"{options.name}-{i}", gpus=options.gpus) for i in range(options.nodes)]
        await stack.enter_async_context(running(nodes, setting))
        if options.control_plane:
            await stack.enter_async_context(controlling(calls))
            await stack.enter_async_context(proxying(calls, network))
        sys.stderr.write(f"{len(nodes)} nodes are ready; logs: {setting.logs}\n")
        await ending.wait()


def main() -> None:
    try:
        asyncio.run(_run(_options()))
    except ScalerError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


main()
