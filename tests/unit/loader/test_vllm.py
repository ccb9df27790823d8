"""The vLLM plug-in against vLLM's contract as it was read from vLLM 0.32 and 0.33: the base class, the registry, the iterator.

`tests/integration/loader/test_real_vllm.py` tries the real package.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch

import loader
from loader import DigestMismatch, FormatUnsupported, TensorMissing
from loader.manifest import describe, render_manifest
from loader.proof import digest_source
from loader.stage.daemon import Daemon
from loader.stage.pool import Pool
from loader.vllm import Options, parse_options, register, weights


class BaseModelLoader:
    """`vllm.model_executor.model_loader.base_loader.BaseModelLoader`, as far as plug-ins see it."""

    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config


@dataclass
class LoadConfig:
    model_loader_extra_config: Any = field(default_factory=dict)
    download_dir: str | None = None
    ignore_patterns: Any = None


@dataclass
class ModelConfig:
    model: str
    revision: str | None = None
    quantization: str | None = None
    model_weights: str = ""


class Model(torch.nn.Module):
    """A model that takes its weights as vLLM's do: once, in any order, copied into its parameters."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros_like(tensor), requires_grad=False))

    def load_weights(self, arriving: Iterable[tuple[str, torch.Tensor]]) -> set[str] | None:
        own = dict(self.named_parameters())
        loaded = set()
        for name, tensor in arriving:
            if name in own:
                own[name].data.copy_(tensor)
                loaded.add(name)
        return loaded


TENSORS = {"a": torch.arange(40_000.0).reshape(200, 200), "b": torch.ones(7), "drafts": torch.ones(3)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    safetensors.torch.save_file(TENSORS, directory / "model.safetensors")
    return directory


Registered = dict[str, Callable[[LoadConfig], Any]]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Registered:
    """What the package offers to plug-ins."""
    registered: Registered = {}

    def register_model_loader(load_format: str) -> Callable[[type], type]:
        def add(loader_class: type) -> type:
            assert issubclass(loader_class, BaseModelLoader)
            registered[load_format] = loader_class
            return loader_class

        return add

    module = ModuleType("vllm.model_executor.model_loader")
    module.__dict__.update(register_model_loader=register_model_loader, BaseModelLoader=BaseModelLoader)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader", module)
    return registered


def loaded(vllm: Registered, model: Path, into: Model, extra: dict[str, object] | None = None) -> None:
    register()
    made = vllm["emberpool"](LoadConfig(model_loader_extra_config=extra or {}))
    config = ModelConfig(str(model))
    made.download_model(config)
    made.load_weights(into, config)


def test_the_entry_point_is_the_function_that_registers() -> None:
    entry = EntryPoint("emberpool", "loader.vllm:register", "vllm.general_plugins")
    assert entry.load() is register


def test_a_model_gets_its_weights(vllm: Registered, model: Path) -> None:
    into = Model(TENSORS)
    loaded(vllm, model, into)
    for name, tensor in TENSORS.items():
        assert torch.equal(into.get_parameter(name), tensor)


def test_registering_twice_does_no_harm(vllm: Registered) -> None:
    register()
    register()
    assert list(vllm) == ["emberpool"]


def test_weights_may_be_loaded_again_in_place(vllm: Registered, model: Path) -> None:
    into = Model(TENSORS)
    loaded(vllm, model, into)
    address = into.get_parameter("a").data_ptr()
    into.get_parameter("a").data.zero_()
    loaded(vllm, model, into)
    assert into.get_parameter("a").data_ptr() == address
    assert torch.equal(into.get_parameter("a"), TENSORS["a"])


def test_a_parameter_without_values_is_an_error(vllm: Registered, model: Path) -> None:
    into = Model(TENSORS | {"lm_head": torch.ones(2)})
    with pytest.raises(TensorMissing, match="'lm_head'"):
        loaded(vllm, model, into)


def test_what_a_model_does_not_want_is_not_read(model: Path) -> None:
    checkpoint = loader.open_checkpoint(model)
    arriving = weights(checkpoint, torch.device("cpu"), Options(), lambda name: name == "drafts")
    assert [name for name, _ in arriving] == [name for name in checkpoint.tensors if name != "drafts"]


def test_a_manifest_is_checked_unless_that_is_not_wanted(vllm: Registered, model: Path) -> None:
    checkpoint = loader.open_checkpoint(model)
    digests = digest_source(checkpoint) | {"b": "0" * 32}
    (model / "model.emberpool.json").write_text(render_manifest(describe(checkpoint, digests)))
    with pytest.raises(DigestMismatch):
        loaded(vllm, model, Model(TENSORS))
    loaded(vllm, model, Model(TENSORS), {"prove": False})


def test_from_the_stage_daemon(vllm: Registered, model: Path, stage_socket: Path) -> None:
    into = Model(TENSORS)
    loaded(vllm, model, into, {"stage_socket": str(stage_socket)})
    assert torch.equal(into.get_parameter("a"), TENSORS["a"])


@pytest.fixture
def stage_socket(model: Path, tmp_path: Path) -> Iterator[Path]:
    daemon = Daemon(Pool(2**24, (str(model),)), tmp_path / "stage.sock")
    thread = Thread(target=daemon.serve)
    thread.start()
    yield tmp_path / "stage.sock"
    daemon.close()
    thread.join()


def test_without_the_daemon_that_was_named_nothing_is_loaded(vllm: Registered, model: Path) -> None:
    with pytest.raises(loader.errors.StageUnreachable):
        loaded(vllm, model, Model(TENSORS), {"stage_socket": "/nowhere"})


def test_no_weights_lie_in_memory_that_is_not_vllm_s(vllm: Registered) -> None:
    register()
    assert vllm["emberpool"](LoadConfig()).get_external_weight_memory(None) == 0


def test_a_model_of_two_checkpoints_is_refused(vllm: Registered, model: Path) -> None:
    into = Model(TENSORS)
    into.secondary_weights = ("another",)  # type: ignore[assignment]
    with pytest.raises(FormatUnsupported):
        loaded(vllm, model, into)


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ({"thread": 1}, "no option 'thread'"),
        ({"threads": 0}, "threads of load format emberpool can't be 0"),
        ({"threads": True}, "can't be True"),
        ({"window_mib": "1"}, "can't be '1'"),
        ({"gigabytes_per_second": -1.0}, "can't be -1.0"),
        ({"prove": 1}, "can't be 1"),
        ([], "wants an object"),
    ],
)
def test_options_that_are_none(extra: object, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_options(extra)


def test_all_options() -> None:
    extra = {
        "threads": 2,
        "window_mib": 64,
        "gigabytes_per_second": 2,
        "stage_socket": "/s",
        "prove": False,
        "follow_links": True,
        "gds": True,
    }
    assert parse_options(extra) == Options(**extra)
    assert parse_options({}) == parse_options(None) == Options()
