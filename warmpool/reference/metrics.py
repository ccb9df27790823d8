"""vLLM's metrics under vLLM's names, for what this engine really measures. What vLLM has beyond that is left out, not faked.

What vLLM doesn't have bears the prefix `reference:`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from warmpool.reference.sequence import FinishReason, Load

_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Buckets as vLLM 0.32 has them: a threshold on an edge reads the same from both."""


def _token_counts(max_model_len: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 … up to the longest sequence, as vLLM builds them."""
    steps = (mantissa * 10**exponent for exponent in range(12) for mantissa in (1, 2, 5))
    return [float(step) for step in steps if step <= max_model_len] or [1.0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is known of a request when it ends; times in seconds of one clock.

    Attributes:
        reason: why it ended.
        prompt_tokens: length of its prompt.
        generation_tokens: tokens that it got.
        max_tokens: tokens that it asked for.
        arrived: when it came in.
        first: when its first token came; None if none did.
        last: when it ended.
    """

    reason: FinishReason
    prompt_tokens: int
    generation_tokens: int
    max_tokens: int
    arrived: float
    first: float | None
    last: float


class Metrics:
    """One engine's metrics on a registry of their own. One thread only: the event loop's."""

    def __init__(self, model: str, max_model_len: int) -> None:
        self._registry = CollectorRegistry(auto_describe=True)  # the process's own metrics have names only so
        self._labels = {"engine": "0", "model_name": model}
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._sleep = Gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake.",
            [*self._labels, "sleep_state"],
            registry=self._registry,
        )
        self._kv_taken = Gauge(
            "reference:kv_taken_bytes",
            "KV memory that is taken. After a wake-up it grows in the background up to the whole.",
            [*self._labels, "memory"],
            registry=self._registry,
        )
        self._parked = Gauge(
            "reference:parked_bytes",
            "Host memory that a copy of the weights takes, whether or not they are parked.",
            list(self._labels),
            registry=self._registry,
        ).labels(**self._labels)
        self._weights = Gauge(
            "reference:weight_load_seconds",
            "How long the weights took to come at the start, by the tier that they came from.",
            [*self._labels, "tier"],
            registry=self._registry,
        )
        self._passed_over = Gauge(
            "reference:weight_tier_passed_over",
            "1 for each faster tier that was tried in vain at the start, with the reason's code.",
            [*self._labels, "tier", "code"],
            registry=self._registry,
        )
        self._prompt = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._generation = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        for reason in FinishReason:
            self._success.labels(**self._labels, finished_reason=str(reason))
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            _FIRST_TOKEN_SECONDS,
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN_SECONDS
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time per output token of a request, in seconds.",
            _TOKEN_SECONDS,
        )
        self._whole = self._histogram(
            "e2e_request_latency_seconds",
            "Histogram of end to end request latency in seconds.",
            _REQUEST_SECONDS,
        )
        self._decoding = self._histogram(
            "request_decode_time_seconds",
            "Histogram of time spent between first and last token.",
            _REQUEST_SECONDS,
        )
        counts = _token_counts(max_model_len)
        self._prompt_lengths = self._histogram(
            "request_prompt_tokens", "Number of prefill tokens processed.", counts
        )
        self._lengths = self._histogram(
            "request_generation_tokens", "Number of generation tokens processed.", counts
        )
        self._asked = self._histogram(
            "request_params_max_tokens", "Histogram of the max_tokens parameter.", counts
        )
        self.sleep(asleep=False, parked=False)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry).labels(
            **self._labels
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] | list[float]) -> Histogram:
        family = Histogram(f"vllm:{name}", text, list(self._labels), buckets=buckets, registry=self._registry)
        return family.labels(**self._labels)

    def load(self, load: Load) -> None:
        """Take over how busy the engine is."""
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._kv_usage.set(load.kv_usage)

    def kv_taken(self, nbytes: int, memory: str) -> None:
        """Take over how much of the KV memory there is, in bytes, and where it comes from."""
        self._kv_taken.labels(**self._labels, memory=memory).set(nbytes)

    def parked(self, nbytes: int) -> None:
        """Take over the host memory that a copy of the weights takes, in bytes."""
        self._parked.set(nbytes)

    def weights(self, told: Mapping[str, Any]) -> None:
        """Take over how the weights came, as the start's record of that phase has it."""
        if "tier" in told:
            self._weights.labels(**self._labels, tier=told["tier"]).set(told["loadSeconds"])
        for each in told.get("passedOver", ()):
            self._passed_over.labels(**self._labels, tier=each["tier"], code=each["code"]).set(1)

    def sleep(self, *, asleep: bool, parked: bool) -> None:
        """Take over whether the KV memory is given back, and whether the weights are parked. They are never discarded here."""
        for state, value in (("awake", not asleep), ("weights_offloaded", parked), ("discard_all", False)):
            self._sleep.labels(**self._labels, sleep_state=state).set(int(value))

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """A request got its first token."""
        self._first_token.observe(seconds)
        self._prompt.inc(prompt_tokens)
        self._generation.inc()

    def next_token(self, seconds: float) -> None:
        """A request got another token, `seconds` after the one before."""
        self._inter_token.observe(seconds)
        self._generation.inc()

    def ended(self, ended: Ended) -> None:
        """A request ended."""
        self._success.labels(**self._labels, finished_reason=str(ended.reason)).inc()
        self._whole.observe(ended.last - ended.arrived)
        self._prompt_lengths.observe(ended.prompt_tokens)
        self._lengths.observe(ended.generation_tokens)
        self._asked.observe(ended.max_tokens)
        if ended.first is not None:
            self._decoding.observe(ended.last - ended.first)
            if ended.generation_tokens > 1:
                self._per_token.observe((ended.last - ended.first) / (ended.generation_tokens - 1))

    def lost(self, reason: FinishReason) -> None:
        """A request ended whose client had gone before."""
        self._success.labels(**self._labels, finished_reason=str(reason)).inc()

    def text(self, names: Collection[str] = ()) -> bytes:
        """The page that GET /metrics shows, in Prometheus' text format.

        Args:
            names: of the samples that are wanted; none: all. A few of them cost a fifth of the time.
        """
        return generate_latest(self._registry.restricted_registry(names) if names else self._registry)
