from typing import Any

import pytest

from warmpool.reference.checkpoints import SHAPES, _huggingface
from warmpool.reference.config import RopeScaling, parse_config
from warmpool.reference.errors import UnsupportedModel

BASE: dict[str, Any] = _huggingface(SHAPES["tiny"])
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_reads_back(shape: str) -> None:
    assert parse_config(_huggingface(SHAPES[shape])) == SHAPES[shape]


def test_rope_parameters_is_read_like_rope_scaling() -> None:
    raw = {key: value for key, value in BASE.items() if key not in {"rope_scaling", "rope_theta"}}
    config = parse_config(raw | {"rope_parameters": LLAMA3})
    assert config.rope_theta == 500_000.0
    assert config.rope_scaling == RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM", id="architecture"),
        pytest.param({"architectures": None}, "architectures", id="no-architecture"),
        pytest.param({"hidden_act": "gelu"}, "hidden_act", id="activation"),
        pytest.param({"attention_bias": True}, "attention_bias", id="bias"),
        pytest.param({"quantization_config": {"bits": 4}}, "quantization_config", id="quantized"),
        pytest.param({"rope_scaling": {"rope_type": "yarn"}}, "yarn", id="rope"),
        pytest.param({"hidden_size": "wide"}, "wide", id="not-a-number"),
        pytest.param({"num_hidden_layers": 0}, "num_hidden_layers", id="no-layers"),
        pytest.param({"num_key_value_heads": 4}, "share", id="odd-groups"),
        pytest.param({"head_dim": 33}, "head_dim", id="odd-head"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named) as caught:
        parse_config(BASE | change)
    assert caught.value.hint


def test_a_missing_dimension_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="vocab_size"):
        parse_config({key: value for key, value in BASE.items() if key != "vocab_size"})


def test_the_large_shapes_have_their_published_sizes() -> None:
    def parameters(shape: str) -> float:
        total = 0
        for dimensions in SHAPES[shape].tensor_shapes().values():
            size = 1
            for dimension in dimensions:
                size *= dimension
            total += size
        return total / 1e9

    assert parameters("llama-1b") == pytest.approx(1.236, abs=0.001)
    assert parameters("llama-8b") == pytest.approx(8.030, abs=0.001)
