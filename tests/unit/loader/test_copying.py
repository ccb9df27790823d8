"""What a failing driver is to whoever copies with it, and what isn't the driver's."""

import pytest

from loader.cuda.copying import driver_errors
from loader.cuda.library import CallFailed, FunctionMissing
from loader.errors import DeviceUnavailable


@pytest.mark.parametrize(
    "failure", [CallFailed("cuInit: no device (100)", out_of_memory=False), FunctionMissing("cuMemCreate")]
)
def test_a_driver_that_fails_is_a_device_that_cannot_be_used(failure: Exception) -> None:
    with pytest.raises(DeviceUnavailable, match="the CUDA driver can't be used: cu"), driver_errors():
        raise failure


def test_a_library_that_cannot_be_opened_is_one_too_where_nothing_else_is_opened() -> None:
    with pytest.raises(DeviceUnavailable, match="libcuda"), driver_errors(OSError):
        raise OSError("libcuda.so.1: cannot open shared object file")


def test_what_the_callers_own_code_raises_passes() -> None:
    with pytest.raises(BrokenPipeError), driver_errors():
        raise BrokenPipeError
