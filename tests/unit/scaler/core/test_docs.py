"""What docs/deciding.md says of reasons is all that there are."""

import re
from pathlib import Path

from scaler.core.model import ReasonCode

PAGE = Path(__file__).parents[4] / "docs" / "deciding.md"


def test_every_reason_is_in_the_page_and_no_other() -> None:
    table = PAGE.read_text("utf-8").partition("## Reasons")[2]
    assert set(re.findall(r"`([A-Z][A-Za-z]+)`", table)) == {str(code) for code in ReasonCode}
