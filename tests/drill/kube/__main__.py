"""A whole drill through the Kubernetes adapter on this machine: `python -m tests.drill.kube`.

Controllers, a gateway, agents and reference engines run as they do in a cluster; the cluster itself is one of stand-ins, or with
`--kubeconfig` somebody's own control plane, under which only the nodes are stand-ins. First the models burst. Then, under a steady
load, a fleet is rolled out, its pods are evicted, and a node is drained.

Exit code 0: every check passed; 1: one failed, or something didn't come about; 2: an option can't be used.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
import structlog

from scaler.drill import interruptible
from scaler.errors import ScalerError, UserError
from tests.drill.kube.bring_up import (
    WHOLE,
    Drilled,
    Site,
    brought_up,
    drill,
)
from tests.drill.kube.disruptions import DISRUPTIONS
from tests.drill.kube.ground import stand_in, under_control_plane

PARTS = ("burst", *DISRUPTIONS)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="python -m tests.drill.kube",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--kubeconfig", type=Path, default=None, help="a control plane to run under (default: a stand-in)"
    )
    options.add_argument(
        "--only", choices=PARTS, action="append", help="which parts (default: all); repeatable"
    )
    options.add_argument(
        "--out", type=Path, default=None, help="folder of the reports (default: .emberpool/drills/…)"
    )
    options.add_argument(
        "--network",
        choices=("loopback", "namespaces"),
        default="namespaces" if os.geteuid() == 0 else "loopback",
        help="of pods under a control plane (default: namespaces for root)",
    )
    return options.parse_args()


async def _drilled(site: Site, part: str, output: Path) -> bool:
    """Run one part; return whether it passed."""
    await site.when_warm()
    psutil.cpu_percent()  # from here on
    if part == "burst":
        done = await drill(site, "burst", output)
    else:
        done = await drill(site, "steady", output, lambda: DISRUPTIONS[part](site, _tell))
    _tell(f"{part}: CPU of this machine {psutil.cpu_percent():.0f} %, with whatever else runs on it")
    return _show(part, done)


def _show(part: str, done: Drilled) -> bool:
    _tell(done.said)
    sys.stdout.write(f"{part}\n{done.printed}\n")
    sys.stdout.flush()
    return done.code == 0


async def _run(options: argparse.Namespace) -> int:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output: Path = options.out or Path(".emberpool/drills") / f"kube-{stamp}"
    passed: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="drill-kube-") as temporary:
        directory = Path(temporary)
        ground = (
            stand_in(directory)
            if options.kubeconfig is None
            else under_control_plane(directory, options.kubeconfig, options.network)
        )
        async with ground as made, brought_up(directory, made, WHOLE, _tell) as site:
            for part in options.only or PARTS:
                passed[part] = await _drilled(site, part, output / part)
    for part, good in passed.items():
        sys.stdout.write(f"{part}: {'pass' if good else 'fail'}\n")
    return 0 if all(passed.values()) else 1


def main() -> None:
    options = _options()
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)  # a stand-in tells of each conflict
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    code = 1
    try:
        code = interruptible.run(_run(options))
    except* ScalerError as failures:
        error = interruptible.first(failures)
        code = 2 if isinstance(error, UserError) else 1
        _tell(f"error: {error}")
    sys.exit(code)


main()
