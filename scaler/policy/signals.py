"""Where a policy's load is read from: one model for each type of signal.

Several signals of one policy complete each other. What the gateway, the engines and a query say of the same requests is
counted once; what waits in a Redis queue is work that has not arrived yet, and counts for how fast it must drain.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from scaler.policy.addresses import host_port_problem, url_problem
from scaler.policy.base import Broken, PolicyModel, as_far_as_sound, form, integer, label, text
from scaler.policy.promql.mistakes import mistake


def _file(example: str) -> Any:  # noqa: ANN401 - as pydantic's own Field
    return text("an absolute path of a file", pattern=r"^/[^\x00]*$", longest=4096, example=example)


TokenFile = Annotated[str, _file("/etc/emberpool/prometheus-token")]
PasswordFile = Annotated[str, _file("/etc/emberpool/password")]
CertificateFile = Annotated[str, _file("/etc/emberpool/ca.pem")]
HttpUrl = Annotated[
    str,
    text(
        "an http or https address",
        pattern=r"^https?://[^\s/?#@]+([/?#]\S*)?$",
        longest=2048,
        example="http://prometheus.monitoring:9090",
    ),
    form(url_problem),
]
HostPort = Annotated[
    str,
    text(
        "HOST:PORT",
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):[0-9]{1,5}$",
        longest=300,
        example="redis.serving:6379",
    ),
    form(host_port_problem),
]
Key = Annotated[
    str,
    text("a key of Redis", pattern=r"^[^\x00]+$", longest=1024, example="jobs"),
]


class SignalBase(PolicyModel):
    """What every signal has."""

    name: Annotated[str, label("gateway")]
    """Name of the signal, unique within the policy. It stands in decisions and metrics."""


class Pushed(SignalBase):
    """Samples that somebody sends: the gateway by itself, agents, or anyone's queue."""

    type: Literal["Pushed"]
    """Which type of signal this is."""


class EngineMetrics(SignalBase):
    """Reads the metrics pages of the serving engines themselves."""

    type: Literal["EngineMetrics"]
    """Which type of signal this is."""
    interval_milliseconds: Annotated[int, integer("milliseconds", 50, 60_000, example=250)] = 250
    """Milliseconds between two readings of one engine. The default of 250 sees a burst within a quarter of a second and
    costs an engine next to nothing; it is stretched by itself where there are more engines than one core can read."""
    timeout_milliseconds: Annotated[int, integer("milliseconds", 50, 60_000, example=1000)] = 1000
    """Milliseconds after which a reading is given up. The default of one second is long for a metrics page; a slow engine
    delays no other."""


class Measures(StrEnum):
    """What a number from outside stands for."""

    REQUESTS = "Requests"
    """Requests that engines have, waiting or being answered: demand. Of this and EngineMetrics the higher counts."""
    QUEUE_DEPTH = "QueueDepth"
    """Requests that wait before the engines: demand beside that. Of this and the gateway's queue the higher counts."""
    QUEUE_AGE_SECONDS = "QueueAgeSeconds"
    """Seconds that the oldest of them has waited."""
    TTFT_SHARE_OVER_OBJECTIVE = "TtftShareOverObjective"
    """Share of the requests, from 0 to 1, whose first token came later than the objective; of serving engines only."""


class Basic(PolicyModel):
    """A user name and a file with the password."""

    username: Annotated[
        str, text("a user name", pattern=r"^[^\x00:\r\n]+$", longest=256, example="emberpool")
    ]
    """Name of the user."""
    password_file: PasswordFile
    """File that holds the password. It is read anew for each request, so that a rotated secret works."""


class Authorization(PolicyModel):
    """How to say who asks. Secrets are in files, never in a policy."""

    basic: Basic | None = None
    """HTTP basic authentication. By default none."""
    bearer_token_file: TokenFile | None = None
    """File with a bearer token. It is read anew for each request, so that a rotated token works. By default none."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that there is one way."""
        if self.basic is not None and self.bearer_token_file is not None:
            yield Broken(
                path=("basic",), message="bearerTokenFile is given as well", hint="keep one of the two"
            )


class Tls(PolicyModel):
    """How a server proves itself."""

    ca_file: CertificateFile | None = None
    """File with the certificates to trust. By default the system's own."""
    skip_verify: bool = False
    """Take any certificate. The default is false: only a test needs this."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that nothing is named that isn't looked at."""
        if self.skip_verify and self.ca_file is not None:
            message = "is given, and skipVerify takes any certificate"
            yield Broken(path=("caFile",), message=message, hint="keep one of the two")


class Prometheus(SignalBase):
    """Asks a Prometheus server an instant query."""

    type: Literal["Prometheus"]
    """Which type of signal this is."""
    server: HttpUrl | None = None
    """Address of the server. By default the controller's `--prometheus`."""
    query: Annotated[
        str,
        text(
            "a PromQL query",
            pattern=r"\S",
            longest=8192,
            example='sum(vllm:num_requests_waiting{model_name="llama-8b"})',
        ),
        form(mistake),
    ]
    """What to ask. The answer must be one series or a scalar; of several series the reading is Missing. Select whose series
    are meant, by namespace or model: one Prometheus scrapes many."""
    measures: Measures
    """What the answer stands for. There is no default: the same number means different things. A share, such as that of the
    KV memory in use, is no number of requests: `targetInFlight` says how many requests one resident holds."""
    interval_seconds: Annotated[int, integer("seconds", 1, 3600, example=15)] = 15
    """Seconds between two queries. The default of 15 fits how often a Prometheus usually scrapes; asking more often gives
    the same answer."""
    timeout_seconds: Annotated[int, integer("seconds", 1, 300, example=5)] = 5
    """Seconds after which a query is given up. The default is five."""
    authorization: Authorization = Authorization()
    """How to say who asks."""
    tls: Tls = Tls()
    """How the server proves itself."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that queries don't overlap, and that only a server with a certificate is verified."""
        yield from as_far_as_sound(self._verified(), self._overlap())

    def _verified(self) -> Iterator[Broken]:
        if self.server is not None and self.server.startswith("http://") and self.tls != Tls():
            message = "is given, and server is an http address, which shows no certificate"
            yield Broken(path=("tls",), message=message, hint="write https:// in server, or remove tls")

    def _overlap(self) -> Iterator[Broken]:
        if self.timeout_seconds > self.interval_seconds:
            message = f"must be ≤ intervalSeconds ({self.timeout_seconds} > {self.interval_seconds})"
            yield Broken(path=("timeoutSeconds",), message=message, hint="lower timeoutSeconds")


class RedisMode(StrEnum):
    """How a Redis is run."""

    STANDALONE = "Standalone"
    """One server."""
    SENTINEL = "Sentinel"
    """A master that sentinels name."""
    CLUSTER = "Cluster"
    """A cluster of shards."""


class RedisServer(PolicyModel):
    """Which Redis, and how to reach it."""

    mode: RedisMode = RedisMode.STANDALONE
    """How it is run. The default is `Standalone`."""
    addresses: Annotated[tuple[HostPort, ...], Field(min_length=1, max_length=64)] | None = None
    """The server, the sentinels, or some nodes of the cluster. By default the controller's `--redis`."""
    sentinel_master: Annotated[str, label("mymaster")] | None = None
    """Name that the sentinels know the master by; needed with `Sentinel`, and only there."""
    database: Annotated[int, integer("number of a database", 0, 1000, example=0)] = 0
    """Number of the database. The default is 0, the only one that a cluster has."""
    username: (
        Annotated[str, text("a user name", pattern=r"^[^\x00\s]+$", longest=256, example="emberpool")] | None
    ) = None
    """ACL user. By default Redis' `default` user."""
    password_file: PasswordFile | None = None
    """File with the password. By default none is sent."""
    tls: Tls | None = None
    """Encrypt the connection. By default it is not."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules between mode and the rest."""
        yield from as_far_as_sound(self._masters(), self._databases(), self._servers())

    def _masters(self) -> Iterator[Broken]:
        sentinel = self.mode is RedisMode.SENTINEL
        if sentinel and self.sentinel_master is None:
            hint = "the name in the sentinels' own configuration, mymaster by default"
            yield Broken(path=("sentinelMaster",), message="is missing: mode is Sentinel", hint=hint)
        if not sentinel and self.sentinel_master is not None:
            message = f"is for mode Sentinel, and mode is {self.mode}"
            yield Broken(path=("sentinelMaster",), message=message, hint="set mode: Sentinel, or remove it")

    def _databases(self) -> Iterator[Broken]:
        if self.mode is RedisMode.CLUSTER and self.database:
            message = f"a cluster has database 0 only, is {self.database}"
            yield Broken(path=("database",), message=message, hint="remove database")

    def _servers(self) -> Iterator[Broken]:
        if self.mode is RedisMode.STANDALONE and self.addresses and len(self.addresses) > 1:
            message = f"mode Standalone takes one address, there are {len(self.addresses)}"
            hint = "set mode: Sentinel or Cluster, or keep one address"
            yield Broken(path=("addresses", 1), message=message, hint=hint)


class RedisSignal(SignalBase):
    """What the signals about a queue in Redis have in common."""

    key: Key
    """Key of the queue."""
    server: RedisServer = RedisServer()
    """Which Redis."""
    interval_milliseconds: Annotated[int, integer("milliseconds", 50, 60_000, example=1000)] = 1000
    """Milliseconds between two readings. The default is one second: the commands take constant time."""
    timeout_milliseconds: Annotated[int, integer("milliseconds", 50, 60_000, example=500)] = 500
    """Milliseconds after which a command is given up. The default is 500."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that commands don't overlap."""
        if self.timeout_milliseconds > self.interval_milliseconds:
            message = (
                f"must be ≤ intervalMilliseconds ({self.timeout_milliseconds} > {self.interval_milliseconds})"
            )
            yield Broken(path=("timeoutMilliseconds",), message=message, hint="lower timeoutMilliseconds")


class RedisList(RedisSignal):
    """Length of a list that workers pop from."""

    type: Literal["RedisList"]
    """Which type of signal this is."""


class RedisStream(RedisSignal):
    """Lag and pending entries of a consumer group of a stream, and the age of the oldest."""

    type: Literal["RedisStream"]
    """Which type of signal this is."""
    group: Annotated[
        str, text("a consumer group's name", pattern=r"^[^\x00]+$", longest=1024, example="workers")
    ]
    """The consumer group that does the work."""


class RedisSortedSet(RedisSignal):
    """Members of a sorted set that are due: their score is a Unix time that has come."""

    type: Literal["RedisSortedSet"]
    """Which type of signal this is."""


Signal = Annotated[
    Pushed | EngineMetrics | Prometheus | RedisList | RedisStream | RedisSortedSet,
    Field(discriminator="type"),
]
"""One signal of any type."""
