"""What engines tell of what they run with, and what they leave open."""

import pytest

from warmpool.engines import owners
from warmpool.expectations import Ownership

NOTHING = Ownership()
VLLM = {"model_config": {"dtype": "torch.bfloat16"}, "parallel_config": {"tensor_parallel_size": 2}}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param(
            owners.of_vllm("0.32.0", VLLM),
            Ownership(engine_version="0.32.0", dtype="bfloat16", tensor_parallel_size=2),
            id="vLLM",
        ),
        pytest.param(owners.of_vllm("0.32.0", {}), Ownership(engine_version="0.32.0"), id="vLLM, a version"),
        pytest.param(
            owners.of_vllm("", {"model_config": [], "parallel_config": {"tensor_parallel_size": "2"}}),
            NOTHING,
            id="vLLM, otherwise than known",
        ),
        pytest.param(
            owners.of_sglang({"version": "0.5.23", "dtype": "half", "tp_size": 4}),
            Ownership(engine_version="0.5.23", dtype="half", tensor_parallel_size=4),
            id="SGLang",
        ),
        pytest.param(owners.of_sglang({"dtype": "auto", "tp_size": True}), NOTHING, id="SGLang, left open"),
        pytest.param(
            owners.of_reference(
                {
                    "ownership": {
                        "weightsDigest": "ab",
                        "engineVersion": "1",
                        "dtype": "float32",
                        "tensorParallelSize": 1,
                    }
                }
            ),
            Ownership(weights_digest="ab", engine_version="1", dtype="float32", tensor_parallel_size=1),
            id="reference",
        ),
        pytest.param(owners.of_reference({}), NOTHING, id="reference, an older one"),
    ],
)
def test_what_is_told_is_read_and_the_rest_is_unknown(told: Ownership, expected: Ownership) -> None:
    assert told == expected
