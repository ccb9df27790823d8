"""The collector is still inside a block, and afterwards what it was."""

import gc
from collections.abc import Iterator

import pytest

from loader.garbage import uncollected


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.isenabled()
    yield
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_afterwards_it_is_what_it_was(*, enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_it_is_still_until_the_last_of_several_blocks_ends() -> None:
    gc.enable()
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_starts_it_again() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="wrong"), uncollected():
        raise ValueError("wrong")
    assert gc.isenabled()
