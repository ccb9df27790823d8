"""The part `engine.warmup` of a policy: which requests residents compute before they are proven.

Which routine a library takes depends on how long a prompt is and how many sequences are computed at once, and it is compiled or loaded
when it is first needed. Nobody knows these sizes better than who writes the policy: they are those of its clients.
"""

from typing import Annotated, Any

from pydantic import Field

from scaler.policy.base import PolicyModel, integer


class Warmup(PolicyModel):
    """Which requests residents compute before they are proven."""

    prompt_tokens: (
        Annotated[
            tuple[Annotated[int, integer("tokens", 1, 1 << 20, example=512)], ...], Field(max_length=32)
        ]
        | None
    ) = None
    """Lengths of prompts, in tokens; each is sent alone. An empty list sends none. By default 8, 32, 128, 512 and 2048, as far as the
    engine takes them: it tells how long a sequence may be."""
    batch_sizes: (
        Annotated[tuple[Annotated[int, integer("requests", 1, 4096, example=8)], ...], Field(max_length=32)]
        | None
    ) = None
    """How many requests are sent at once, one entry for each batch. An empty list sends none. By default the powers of two up to the
    `targetInFlight` of the fleet, and that itself: more the gateway never sends."""
    max_tokens: Annotated[int, integer("tokens", 1, 4096, example=8)] | None = None
    """Tokens that each request is answered with. By default what the agent's configuration says, which is 8 unless it says otherwise."""

    def told(self) -> dict[str, Any]:
        """Return what it says, as agents read it; what it leaves out is theirs to decide."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
