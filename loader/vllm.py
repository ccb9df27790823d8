"""The loader inside vLLM: ``vllm serve DIR --load-format emberpool``.

vLLM finds `register` through the entry point group ``vllm.general_plugins`` in every process that it starts. The load format reads
a checkpoint through this package: the strict parser, reads in the order of the files into windows on the device, and the manifest's
proof where there is one. vLLM's models cut tensors for their rank themselves, so whole tensors are handed to them.

Options, as ``--model-loader-extra-config '{"threads": 8}'``; unknown ones are refused:

- ``threads``: how many read at once.
- ``window_mib``: tensors that are on the device besides the parameters; two windows at most.
- ``gigabytes_per_second``: bandwidth cap, so that a neighbour that serves isn't slowed down.
- ``stage_socket``: load from the stage daemon at this socket; there is no silent way around it when it doesn't answer.
- ``prove``: false leaves a manifest unread that lies beside the shards.
- ``follow_links``: true takes links that lead out of the checkpoint's directory.
- ``gds``: true reads into device memory with GPUDirect Storage where that works.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from loader.checkpoint import INDEX_FILE, Checkpoint
from loader.control import Control
from loader.errors import FormatUnsupported, TensorMissing, some
from loader.loading import Run
from loader.sources.files import FILES, open_checkpoint, read_manifest
from loader.sources.port import Source
from loader.stage.client import StageClient, StageSource
from loader.streaming import WINDOW_BYTES, arrivals

LOAD_FORMAT = "emberpool"
_GIGABYTE = 1e9
_log = logging.getLogger("vllm.emberpool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``model_loader_extra_config`` may say; the module tells what each means."""

    threads: int | None = None
    window_mib: int = WINDOW_BYTES >> 20
    gigabytes_per_second: float | None = None
    stage_socket: str | None = None
    prove: bool = True
    follow_links: bool = False
    gds: bool = False


_KINDS: Mapping[str, tuple[type, ...]] = {
    "threads": (int,),
    "window_mib": (int,),
    "gigabytes_per_second": (int, float),
    "stage_socket": (str,),
    "prove": (bool,),
    "follow_links": (bool,),
    "gds": (bool,),
}


def parse_options(extra: object) -> Options:
    """Check the options.

    Raises:
        ValueError: one is unknown, or its value can't be; vLLM shows it and ends.
    """
    if extra is None:
        return Options()
    if not isinstance(extra, dict):  # vLLM shows ValueErrors as mistakes of its options
        raise ValueError(  # noqa: TRY004 - what vLLM takes for a mistake in its options
            f"model_loader_extra_config is {type(extra).__name__}; load format emberpool wants an object"
        )
    unknown = sorted(str(key) for key in extra.keys() - _KINDS.keys())
    if unknown:
        raise ValueError(f"load format emberpool has no option {some(unknown)}; it has {', '.join(_KINDS)}")
    for key, value in extra.items():
        kinds = _KINDS[key]
        # A bool is an int to Python, and a number must be more than nothing.
        right = type(value) in kinds and (isinstance(value, (bool, str)) or value > 0)
        if not right:
            raise ValueError(f"option {key} of load format emberpool can't be {value!r}")
    return Options(**extra)


def register() -> None:
    """Make the load format known to vLLM. For its plug-in mechanism; calling it again does no harm."""
    model_loader: Any = import_module("vllm.model_executor.model_loader")
    model_loader.register_model_loader(LOAD_FORMAT)(_loader_class(model_loader.BaseModelLoader))


def weights(
    checkpoint: Checkpoint, device: torch.device, options: Options, skip: Callable[[str], bool]
) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's tensors as vLLM's models take them: names and whole tensors, once, in the order of the files.

    Args:
        checkpoint: the opened checkpoint.
        device: where the parameters are.
        options: see the module.
        skip: whether a model doesn't want a tensor; its bytes are not read.

    Raises:
        LoaderError: as `loader.load`.
    """
    names = [name for name in checkpoint.tensors if not skip(name)]
    cap = options.gigabytes_per_second
    control = Control(bytes_per_second=cap * _GIGABYTE if cap else None)
    manifest = read_manifest(checkpoint) if options.prove else None
    with ExitStack() as closing:
        source: Source = FILES
        if options.stage_socket:
            source = StageSource(closing.enter_context(StageClient(Path(options.stage_socket))))
        yield from arrivals(
            checkpoint.only(names),
            device=device,
            window_bytes=options.window_mib << 20,
            manifest=manifest,
            run=Run(threads=options.threads, control=control, source=source, gds=options.gds),
        )


def _loader_class(base: type[Any]) -> type[Any]:
    """The class that vLLM wants, below its own base class, which exists only where vLLM is installed."""

    def construct(self: Any, load_config: Any) -> None:  # noqa: ANN401 - vLLM's objects
        base.__init__(self, load_config)
        self.options = parse_options(load_config.model_loader_extra_config)

    def download_model(self: Any, model_config: Any) -> None:  # noqa: ANN401 - as above
        _directory(self.load_config, model_config)

    def load_weights(self: Any, model: Any, model_config: Any) -> None:  # noqa: ANN401 - as above
        _load_weights(self.load_config, self.options, model, model_config)

    def get_external_weight_memory(self: Any, vllm_config: Any) -> int:  # noqa: ANN401 - as above
        # All weights end in memory that vLLM has allocated itself, so its profiling sees them.
        del self, vllm_config
        return 0

    methods = {
        "__init__": construct,
        "download_model": download_model,
        "load_weights": load_weights,
        "get_external_weight_memory": get_external_weight_memory,
    }
    about = {"__doc__": "vLLM's model loader for load format emberpool.", "__module__": __name__}
    return type("EmberpoolModelLoader", (base,), methods | about)


def _load_weights(load_config: Any, options: Options, model: Any, model_config: Any) -> None:  # noqa: ANN401
    if getattr(model, "secondary_weights", ()):
        raise FormatUnsupported(
            "this model takes weights of a second checkpoint, which load format emberpool doesn't know",
            hint="start vLLM with --load-format auto",
        )
    checkpoint = open_checkpoint(_directory(load_config, model_config), follow_links=options.follow_links)
    device = next(parameter.device for parameter in model.parameters() if not parameter.is_meta)
    skip = getattr(model, "is_unused_checkpoint_weight", None) or (lambda _: False)
    loaded = model.load_weights(weights(checkpoint, device, options, skip))
    _check_complete(checkpoint, model, loaded, model_config)
    _log.info(
        "%d tensors, %d bytes, loaded from %s",
        len(checkpoint.tensors),
        checkpoint.total_bytes,
        checkpoint.root,
    )


def _check_complete(checkpoint: Checkpoint, model: Any, loaded: Any, model_config: Any) -> None:  # noqa: ANN401
    """See that no parameter keeps the values that its memory happened to have."""
    if loaded is None or model_config.quantization is not None:
        return  # a model that doesn't tell, or parameters that aren't the checkpoint's
    left = sorted({name for name, _ in model.named_parameters()} - set(loaded))
    if left:
        raise TensorMissing(
            f"{len(left)} of the model's parameters got no values: {some(left)}",
            file=checkpoint.root,
            tensor=left[0],
            hint="config.json and the weights belong to different models",
        )


def _directory(load_config: Any, model_config: Any) -> str:  # noqa: ANN401 - vLLM's objects
    """The checkpoint's directory; fetched from the hub by vLLM's own means where the model is no directory."""
    model = str(getattr(model_config, "model_weights", None) or model_config.model)
    if Path(model).is_dir():
        return model
    utilities: Any = import_module("vllm.model_executor.model_loader.weight_utils")
    where = {"cache_dir": load_config.download_dir, "revision": model_config.revision}
    folder = utilities.download_weights_from_hf(
        model, allow_patterns=["*.safetensors"], ignore_patterns=load_config.ignore_patterns, **where
    )
    utilities.download_safetensors_index_file_from_hf(model, INDEX_FILE, **where)
    return str(folder)
