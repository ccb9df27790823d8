"""`python -m warmpool.agent --config FILE`: run the agent of one seat."""

import argparse
import logging
import sys
from pathlib import Path

from warmpool.agent.app import complain, run
from warmpool.agent.config import load_config
from warmpool.errors import StartFailed


def main() -> int:
    """Read the command line, run the agent, return its exit status: 0, or 2 if it can't start as it is configured."""
    parser = argparse.ArgumentParser(prog="python -m warmpool.agent", description="The agent of one seat.")
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the seat's config, as JSON"
    )
    parser.add_argument(
        "--annotations",
        type=Path,
        metavar="FILE",
        help="the pod's annotations, as the downward API writes them",
    )
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        return run(load_config(options.config, options.annotations))
    except StartFailed as error:
        return complain(error)


if __name__ == "__main__":
    sys.exit(main())
