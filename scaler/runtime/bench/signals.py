"""What samples and loads cost the controller's loop.

    python -m scaler.runtime.bench.signals --policies 500 --gateways 4

Samples are those of a gateway that names one policy, some, and as many as it does at most. Loads are worked out for every
policy, as each tick does: from samples alone, and with two signals beside them that are read. Figures are processor time of one
core, the median of many.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

from scaler.core.model import Load
from scaler.gateway.queue import Counts, PolicyStats
from scaler.gateway.samples import MOST_POLICIES, Sample, StateBuilder
from scaler.signals.board import PUSHED, Board
from scaler.signals.expected import Expectation
from scaler.signals.port import Part, SignalKey
from scaler.signals.pushed import PushedLimits, PushedSamples
from warmpool.seats import PolicyName

_NOW = 1_796_000_000.0
_TIMES = 50
_STATS = PolicyStats(
    queued=3,
    in_flight=12,
    oldest_wait_seconds=0.123,
    totals=Counts(arrived=123_456, completed=123_441),
)


def _names(count: int) -> list[PolicyName]:
    return [PolicyName(f"team-{number:04}-llama-8b-instruct") for number in range(count)]


def _sample(instance: str, sequence: int, names: Sequence[PolicyName]) -> bytes:
    state = StateBuilder().build(dict.fromkeys(names, _STATS), _NOW + sequence / 1000)
    return Sample(instance=instance, run="bench", sequence=sequence, state=state).to_json()


def _median(work: Callable[[int], object]) -> float:
    """Return the median processor time of one call, in milliseconds."""
    seconds = []
    for number in range(_TIMES):
        began = time.process_time()
        work(number)
        seconds.append(time.process_time() - began)
    return 1000 * statistics.median(seconds)


def _samples(count: int) -> None:
    store = PushedSamples(PushedLimits(samples_per_second=1e9, samples_at_once=1e9))
    names = _names(count)[:MOST_POLICIES]
    bodies = [_sample("gw-1", number, names) for number in range(_TIMES)]
    milliseconds = _median(lambda number: store.ingest(bodies[number], _NOW + 1))
    print(f"a sample of {len(names):4} policies, {len(bodies[0]) / 1000:5.1f} kB  {milliseconds:6.2f} ms")  # noqa: T201


def _loads(count: int, gateways: int) -> None:
    names, store, board = _names(count), PushedSamples(), Board()
    for gateway in range(gateways):
        for turn, sequence in enumerate(range(0, count, MOST_POLICIES)):
            store.ingest(
                _sample(f"gw-{gateway}", turn + 1, names[sequence : sequence + MOST_POLICIES]), _NOW + 1
            )
    kinds = (
        ("gateway", PUSHED, None),
        ("engine", "EngineMetrics", Part.REQUESTS),
        ("jobs", "RedisStream", Part.BACKLOG),
    )
    board.expect(
        {
            SignalKey(name, signal): Expectation(
                type=kind, interval=1.0, timeout=1.0, parts=frozenset({part} if part else ())
            )
            for name in names
            for signal, kind, part in kinds
        }
    )
    for name in names:
        board.observed(SignalKey(name, "engine"), {Part.REQUESTS: 12.0, Part.LATE_SHARE: 0.1}, 0.0)
        board.observed(SignalKey(name, "jobs"), {Part.BACKLOG: 40.0, Part.BACKLOG_AGE_SECONDS: 3.0}, 0.0)

    def pushed(_: int) -> list[Load]:
        return [store.load(name, _NOW + 1) for name in names]

    def all_signals(_: int) -> list[Load]:
        return [board.load(name, store.load(name, _NOW + 1), 1.0) for name in names]

    print(f"loads of {count} policies, {gateways} gateways      {_median(pushed):6.2f} ms")  # noqa: T201
    print(f"the same with two more signals each  {_median(all_signals):6.2f} ms")  # noqa: T201


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--gateways", type=int, default=4)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # noqa: T201
    for count in (1, 16, MOST_POLICIES):
        _samples(count)
    _loads(options.policies, options.gateways)


if __name__ == "__main__":
    main()
