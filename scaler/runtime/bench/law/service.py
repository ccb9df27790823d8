"""How long a request takes and how many of them a GPU holds: the assumptions that all arms share.

Seconds of a request = prompt tokens / (prefill rate ÷ 32) + generated tokens × seconds per token. The prefill rate is a
GPU's, shared evenly by 32 requests: a request takes as long as on a full seat, on an idle one too, and on a seat whose
memory holds fewer than 32. That is the same in every arm, and a little against those that share memory.
"""

from dataclasses import dataclass
from typing import Final

from scaler.runtime.bench.law.arrivals import Arrival

MOST_IN_FLIGHT: Final = 32
"""Requests in flight on one GPU at most, whatever its memory holds: more would slow all of them down."""
RESERVED_SHARE: Final = 0.02
"""Share of a GPU's memory that stays free (as the memory budget of a seat has it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How fast one GPU is. Not measured: what an 8B model on an H200 can be expected to do.

    Attributes:
        prefill: prompt tokens per second of one GPU. An 8B model takes 16 GFLOP a token; 41 % of 989 TFLOPS in bf16
            are 25,600 tokens/s.
        per_token: seconds per generated token on a full seat.
    """

    prefill: float = 25_600.0
    per_token: float = 0.025

    def seconds(self, arrival: Arrival) -> float:
        """Return how long a request is in flight."""
        return arrival.prompt * MOST_IN_FLIGHT / self.prefill + arrival.generated * self.per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a GPU's memory has to hold.

    Attributes:
        gigabytes: its memory, in 10⁹ bytes (an H200 has 141).
        kv_bytes: KV memory of one token. 128 KiB: 32 layers × 8 KV heads × 128 × (key + value) × 2 bytes, an 8B Llama.
    """

    gigabytes: float = 141.0
    kv_bytes: int = 131_072

    def in_flight(self, weights: list[float], tokens: int) -> int:
        """Return how many requests one model can have in flight where these weights are resident.

        Args:
            weights: gigabytes of each resident's weights.
            tokens: tokens of one request; all in flight at once are taken to have as many.
        """
        left = self.gigabytes * (1.0 - RESERVED_SHARE) - sum(weights)
        each = tokens * self.kv_bytes / 1e9
        return max(0, min(MOST_IN_FLIGHT, int(left / each))) if each > 0 else MOST_IN_FLIGHT
