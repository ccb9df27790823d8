"""The law against other rules, on real arrivals and in simulated time.

    python -m scaler.runtime.bench.law --jobs 2
    python -m scaler.runtime.bench.law --quick

Prints what it assumes, a table for each scenario, and which targets are met; writes `points.json` and `frontier.png`.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scaler.core.decide import LAW_VERSION
from scaler.errors import UserError
from scaler.runtime.bench.law import report
from scaler.runtime.bench.law.scenarios import case_of, scenarios
from scaler.runtime.bench.law.sweep import Points, sweep
from scaler.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    options = _parser().parse_args(arguments)
    try:
        return _compare(options)
    except UserError as error:
        sys.stderr.write(f"{error}\n" + (f"\nhint: {error.hint}\n" if error.hint else ""))
        return 2


def _parser() -> argparse.ArgumentParser:
    text = (__doc__ or "").strip()
    parser = argparse.ArgumentParser(
        prog="python -m scaler.runtime.bench.law",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one small scenario: does everything work?")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)"
    )
    parser.add_argument(
        "--only", default="", metavar="LETTER", help="scenarios whose names begin so, such as a"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("bench-report/law"), help="folder (default: %(default)s)"
    )
    parser.add_argument(
        "--no-plot", action="store_true", help="draw no picture (matplotlib is not needed then)"
    )
    return parser


def _compare(options: argparse.Namespace) -> int:
    names = [name for name in scenarios(quick=options.quick) if name.startswith(options.only)]
    if not names:
        known = ", ".join(scenarios(quick=options.quick))
        raise UserError(f"--only {options.only}: no scenario's name begins so", hint=f"there are: {known}")
    began = time.monotonic()
    found = sweep(names, quick=options.quick, jobs=max(1, options.jobs), done=_progress)
    _say(
        f"emberpool {VERSION}, law {LAW_VERSION}, Python {platform.python_version()}, {platform.machine()}\n"
    )
    _say(report.assumptions(case_of(names[0], quick=options.quick)) + "\n")
    for name, points in found.items():
        _say(report.scenario(name, points, quick=options.quick) + "\n")
    _say(report.summary(found) + "\n")
    _say(report.judgement(found, quick=options.quick))
    _write(found, options)
    runs = sum(map(len, found.values()))
    _say(f"\n{runs} runs in {time.monotonic() - began:.0f} s with {options.jobs} processes; {options.output}")
    return 0


def _write(found: Points, options: argparse.Namespace) -> None:
    options.output.mkdir(parents=True, exist_ok=True)
    records = {
        name: [{"arm": p.arm, "knobs": asdict(p.knobs), "outcome": asdict(p.outcome)} for p in points]
        for name, points in found.items()
    }
    (options.output / "points.json").write_text(json.dumps(records, indent=1) + "\n", "utf-8")
    if options.no_plot:
        return
    try:
        from scaler.runtime.bench.law import plot  # noqa: PLC0415 - matplotlib is an extra
    except ModuleNotFoundError as error:
        raise UserError(
            f"no picture without {error.name}", hint="pip install 'emberpool[drill]', or --no-plot"
        ) from error
    plot.draw(found, options.output / "frontier.png")


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done} of {of} runs" + ("\n" if done == of else ""))
        sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
