import pytest

from scaler.gateway.keys import Keys, parse_keys
from scaler.gateway.messages import RequestRefused

KEYS = Keys(parse_keys("# ours\n\n  key-1  \nkey-ü\n"))


def test_a_list_has_one_key_a_line() -> None:
    assert len(KEYS) == 2


@pytest.mark.parametrize("shown", ["Bearer key-1", "bearer  key-1", "Bearer key-ü"])
def test_who_shows_a_key_is_let_in(shown: str) -> None:
    KEYS.check(shown)


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", "Bearer ", "Bearer key-2", "Basic key-1", "key-1", "Bearer # ours", "Bearer \udcff"],
)
def test_who_shows_none_is_not(shown: str | None) -> None:
    with pytest.raises(RequestRefused) as refused:
        KEYS.check(shown)
    assert (refused.value.status, refused.value.code, refused.value.close) == (401, "invalid_api_key", True)
