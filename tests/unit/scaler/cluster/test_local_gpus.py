import pytest

from scaler.cluster.local.gpus import Gpu, parse_list

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param(
            "GPU-aa, NVIDIA H200, 143771\nGPU-bb, NVIDIA H200, 143771\n",
            (Gpu("GPU-aa", "NVIDIA H200", 143771 * MIB), Gpu("GPU-bb", "NVIDIA H200", 143771 * MIB)),
            id="two",
        ),
        pytest.param("No devices were found\n", (), id="words"),
        pytest.param("GPU-aa, odd, [N/A]\n", (), id="no memory told"),
    ],
)
def test_lines_of_nvidia_smi(text: str, found: tuple[Gpu, ...]) -> None:
    assert parse_list(text) == found
