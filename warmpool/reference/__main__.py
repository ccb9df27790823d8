"""`python -m warmpool.reference`. With `--zygote` it imports next to nothing before it has asked for a fork."""

import os
import sys
from pathlib import Path


def _main() -> None:
    from warmpool.reference import zygote_standin  # noqa: PLC0415 (as little as possible, and in this order)
    from warmpool.standins import VARIABLE  # noqa: PLC0415

    path, command = zygote_standin.asks(sys.argv[1:], os.environ)
    if path:
        os.environ[VARIABLE] = path  # for the ranks that this one starts
    without = zygote_standin.stand_in(Path(path), command) if path else ""

    from warmpool.reference.cli import main  # noqa: PLC0415
    from warmpool.reference.startup import Origin  # noqa: PLC0415

    main(Origin(without_zygote=without))


_main()
