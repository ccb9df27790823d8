"""How each type of signal is read here: which source, over which servers, from which engines."""

from collections.abc import Mapping, Sequence

from scaler.cluster.port import Cluster
from scaler.policy.signals import (
    EngineMetrics,
    Prometheus,
    RedisList,
    RedisServer,
    RedisSortedSet,
    RedisStream,
)
from scaler.runtime.signal_options import SignalOptions
from scaler.runtime.signals import PolicySignals
from scaler.runtime.sources import Factory, Wanted
from scaler.signals.engine_metrics import EngineMetricsSource, EngineScrapes
from scaler.signals.engine_targets import EngineTarget, in_rotation
from scaler.signals.port import Source
from scaler.signals.prometheus import PrometheusServers, PrometheusSource
from scaler.signals.pushed_redis import RedisSamples
from scaler.signals.redis_client import RedisServers, server_of_url
from scaler.signals.redis_queue import RedisQueueSource
from scaler.signals.scrape_pace import ScrapePace
from warmpool.seats import PolicyName


def redis_of(options: SignalOptions) -> RedisServer | None:
    """Return the Redis that the options name, or None.

    Raises:
        UserError: the address is none.
    """
    if options.redis is None:
        return None
    server = server_of_url(options.redis)
    if options.redis_password_file is None:
        return server
    return server.model_copy(update={"password_file": str(options.redis_password_file.absolute())})


def factories(cluster: Cluster, options: SignalOptions) -> Mapping[str, Factory]:
    """Return what makes the source of each type of signal. Call it in the event loop that the sources will run in.

    Args:
        cluster: whose engines are read.
        options: the servers of signals that name none.

    Raises:
        UserError: an address is none.
    """
    engines, pace = _Engines(cluster), ScrapePace()
    prometheus, redis = PrometheusServers(options.prometheus), RedisServers(redis_of(options))

    def engine(wanted: Wanted) -> Source:
        signal = wanted.signal
        assert isinstance(signal, EngineMetrics)
        assert wanted.objective is not None
        scrapes = EngineScrapes(
            interval=signal.interval_milliseconds / 1000,
            timeout=signal.timeout_milliseconds / 1000,
            objective=wanted.objective,
        )
        return EngineMetricsSource(wanted.key, scrapes, engines.of, pace)

    def query(wanted: Wanted) -> Source:
        assert isinstance(wanted.signal, Prometheus)
        return PrometheusSource(wanted.key, wanted.signal, prometheus)

    def queue(wanted: Wanted) -> Source:
        assert isinstance(wanted.signal, RedisList | RedisStream | RedisSortedSet)
        return RedisQueueSource(wanted.key, wanted.signal, redis)

    return {
        "EngineMetrics": engine,
        "Prometheus": query,
        "RedisList": queue,
        "RedisStream": queue,
        "RedisSortedSet": queue,
    }


def listeners(signals: PolicySignals, options: SignalOptions) -> list[RedisSamples]:
    """Return what hears samples over Redis, to be run beside the signals; nothing without a Redis or a channel.

    Raises:
        UserError: the address of Redis is none.
    """
    server = redis_of(options)
    return [] if server is None or not options.channel else [signals.listener(server, options.channel)]


class _Engines:
    """The engines in rotation, looked for once for each change of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: Mapping[PolicyName, Sequence[EngineTarget]] | None = None
        cluster.subscribe(self._forget)

    def of(self, policy: PolicyName) -> Sequence[EngineTarget]:
        """Return those of a policy."""
        if self._found is None:
            self._found = in_rotation(self._cluster.seats())
        return self._found.get(policy, ())

    def _forget(self) -> None:
        self._found = None
