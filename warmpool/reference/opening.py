"""Looks at a checkpoint before anything heavy is imported, so that what can't work fails in a moment."""

from dataclasses import dataclass

import loader
from loader.errors import LoaderError
from warmpool.reference.config import LlamaConfig, parse_config
from warmpool.reference.errors import BadCheckpoint, CannotStart
from warmpool.reference.options import ModelOptions
from warmpool.reference.tokenizer import Tokenizer, open_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A checkpoint that has been checked as far as possible without reading weights.

    Attributes:
        checkpoint: its files, their headers checked.
        config: the model's dimensions.
        tokenizer: the checkpoint's own, or bytes.
    """

    checkpoint: loader.Checkpoint
    config: LlamaConfig
    tokenizer: Tokenizer


def open_model(options: ModelOptions) -> OpenedModel:
    """Open a checkpoint and see that its tensors are those that its config.json promises.

    Raises:
        BadCheckpoint: files are missing or broken, or belong to different models.
        UnsupportedModel: another architecture, or one that so many ranks can't share.
        CannotStart: the model can't have sequences as long as wanted.
    """
    try:
        checkpoint = loader.open_checkpoint(options.checkpoint)
    except LoaderError as error:
        raise bad_checkpoint(error) from error
    config = parse_config(checkpoint.config)
    if options.max_model_len > config.max_positions:
        raise CannotStart(
            f"--max-model-len {options.max_model_len} is more than the model's {config.max_positions} positions",
            hint=f"use at most --max-model-len {config.max_positions}",
        )
    _check_shapes(checkpoint, config)
    config.share(options.tensor_parallel_size)
    return OpenedModel(checkpoint=checkpoint, config=config, tokenizer=open_tokenizer(options.checkpoint))


def bad_checkpoint(error: LoaderError) -> BadCheckpoint:
    """The loader's error as one line and its mend."""
    message = str(error).partition("\n\nhint: ")[0]
    return BadCheckpoint(message, hint=error.hint or "restore the checkpoint's files from where they came")


def _check_shapes(checkpoint: loader.Checkpoint, config: LlamaConfig) -> None:
    for name, shape in config.tensor_shapes().items():
        entry = checkpoint.tensors.get(name)
        if entry is None:
            raise BadCheckpoint(
                f"tensor {name} is missing", hint="config.json and the weights belong to different models"
            )
        if tuple(entry.shape) != shape:
            raise BadCheckpoint(
                f"tensor {name} has shape {tuple(entry.shape)}; config.json asks for {shape}",
                hint="config.json and the weights belong to different models",
            )
