"""A suite on a machine that is lent by the minute."""

import asyncio
import time
from pathlib import Path

from scaler.drill.bench.resident_suite import Piece, Suite


def test_a_piece_for_which_too_little_time_is_left_is_not_begun_and_said(tmp_path: Path) -> None:
    suite = Suite(out=tmp_path, arguments=(), count=1, until=time.monotonic() + 50)
    done = asyncio.run(suite.run(Piece.KILLS))
    assert done.exit_code != 0
    assert done.said.startswith("not begun")
    assert list(tmp_path.iterdir()) == []
