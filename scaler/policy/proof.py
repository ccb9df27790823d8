"""The part `engine.proof` of a policy: what residents have to answer before they may serve.

The prompts and tokens themselves are kept with whatever starts the agents (`python -m warmpool.reference expect` prints such a record),
or are what residents agree on. A policy says which of the two, how close answers have to be, and what a record belongs to.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from scaler.policy.base import Broken, PolicyModel, integer, text


class ProofSource(StrEnum):
    """Where it comes from what a resident has to answer."""

    RECORD = "Record"
    """It was recorded: `emberpool local` computes the record from the checkpoint, elsewhere it stands in the agents'
    configuration."""
    AGREEMENT = "Agreement"
    """Residents tell what they answer, and what two of them answer alike is what all have to answer. The first one waits
    until there is a second."""


class RecordOwner(PolicyModel):
    """What a record belongs to: tokens differ between these without anything being wrong."""

    weights_digest: (
        Annotated[
            str, text("a digest", pattern=r"^[!-~]+$", longest=256, example="c63722718850919999daaef700b")
        ]
        | None
    ) = None
    """Digest of the weights, as whoever made the record took it. By default weights aren't compared."""
    engine_version: (
        Annotated[str, text("a version", pattern=r"^[!-~]+$", longest=64, example="0.32.0")] | None
    ) = None
    """Version of the engine, as it tells it itself. By default versions aren't compared."""
    dtype: (
        Annotated[str, text("a number format", pattern=r"^[a-z0-9_]+$", longest=64, example="bfloat16")]
        | None
    ) = None
    """Number format of the weights, as torch writes it. By default it isn't compared."""
    tensor_parallel_size: Annotated[int, integer("GPUs", 1, 1024, example=1)] | None = None
    """Over how many GPUs each tensor is split. By default it isn't compared."""


Prompt = Annotated[
    str,
    text(
        "text of at most 4096 characters", pattern=r"^[^\x00]+$", longest=4096, example="The quick brown fox"
    ),
]


class Proof(PolicyModel):
    """What residents have to answer before they may serve."""

    source: ProofSource = ProofSource.RECORD
    """Where it comes from. The default is `Record`."""
    prompts: Annotated[tuple[Prompt, ...], Field(max_length=64)] = ()
    """What is asked, where residents agree. By default eight short prompts that are unlike each other."""
    max_tokens: Annotated[int, integer("tokens", 1, 4096, example=16)] = 16
    """Tokens that each prompt is answered with, where residents agree. The default is 16."""
    tolerance_percent: Annotated[int, integer("percent", 1, 1000, example=5)] | None = None
    """By how much the probability of a token may differ, where the record has it and the engine tells it. By default only
    tokens are compared; `emberpool local`, which makes the record, allows what rounding explains."""
    ownership: RecordOwner = RecordOwner()
    """What the record belongs to. A resident whose engine tells otherwise fails with that reason, and not with wrong
    tokens. By default what stands in the record counts."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that a record has its own prompts."""
        if self.source is ProofSource.RECORD and self.prompts:
            yield Broken(
                path=("prompts",),
                message="is for source Agreement, and a record has its own prompts",
                hint="set source: Agreement, or remove prompts",
            )
