"""What the arithmetic takes for granted: settings of other systems, measured times, and limits of this one.

`Assumptions` are what a reader may know better and can set. The constants below them are this project's own; a test holds
them against the code that they come from.
"""

from typing import Annotated, Final

from scaler.core.model import ChangeLimit, Pace, Select
from scaler.policy.base import PolicyModel, integer
from warmpool.plan import Limits

_DAY: Final = 86_400
_MOST_MIB: Final = 1 << 26

Seconds = Annotated[int, integer("seconds", 0, _DAY, example=30)]
Deadline = Annotated[int, integer("seconds", 1, _DAY, example=60)]


class Assumptions(PolicyModel):
    """What isn't in any policy and enters the arithmetic. Those without a default are said to be unknown until set."""

    seat_memory_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=144_384)] | None = None
    """Memory of all GPUs of one seat together, for fleets that don't say `seat.memoryMiB`. By default it is unknown."""
    pod_start_seconds: Seconds | None = None
    """Seconds from the creation of a seat's pod until its containers run: scheduling, pulling the image, a new node. By
    default it is unknown."""
    promotion_milliseconds: Annotated[int, integer("milliseconds", 1, 600_000, example=142)] = 142
    """Milliseconds from a decision to the promoted resident's first token. The default is the longest of two promotions
    of a model of 1.2 billion parameters on one H200 (BENCHMARKS.md, the GPU drill: 143 ms less 1 ms to the decision)."""
    move_milliseconds_per_gib: Annotated[int, integer("milliseconds", 1, 600_000, example=60)] | None = None
    """Milliseconds that one GiB of weights takes from GPU to host memory or back, on one GPU. By default it is unknown: what a
    wake from Parked takes more than one from KvReleased, in `emberpool seat describe`, divided by the weights."""
    drain_seconds: Seconds = 30
    """Seconds that a demotion gives the requests which a resident has accepted. The default is the controller's own."""
    settle_milliseconds: Annotated[int, integer("milliseconds", 0, 60_000, example=1000)] = 1000
    """Milliseconds after which a resident that has left rotation gets no new requests through a Service: kube-proxy may lag
    behind the EndpointSlice. The default is one second; 0 where all requests come through the gateway."""
    prometheus_scrape_seconds: Seconds = 60
    """Seconds between two scrapes of the Prometheus that signals ask. The default is Prometheus' own,
    `global.scrape_interval`."""
    prometheus_evaluation_seconds: Seconds = 60
    """Seconds between two evaluations of its recording rules; counts for queries that read a recorded series. The default
    is Prometheus' own, `global.evaluation_interval`."""
    hpa_sync_seconds: Seconds = 15
    """Seconds between two looks of HorizontalPodAutoscalers. The default is that of kube-controller-manager's
    `--horizontal-pod-autoscaler-sync-period`."""
    hpa_tolerance_percent: Annotated[int, integer("percent", 0, 100, example=10)] = 10
    """Change, in percent, up to which a HorizontalPodAutoscaler does nothing. The default is that of kube-controller-manager's
    `--horizontal-pod-autoscaler-tolerance`; `behavior.scaleUp.tolerance` sets it for one."""
    hpa_down_window_seconds: Seconds = 300
    """Seconds for which a HorizontalPodAutoscaler must have seen a smaller number before it scales down. The default is that
    of its `behavior.scaleDown.stabilizationWindowSeconds`."""
    keda_polling_seconds: Seconds = 30
    """Seconds between two checks of a ScaledObject's triggers. The default is that of its `pollingInterval`."""
    keda_cooldown_seconds: Seconds = 300
    """Seconds without any active trigger after which KEDA scales to zero. The default is that of its `cooldownPeriod`."""
    client_seconds: Deadline | None = None
    """Seconds after which clients, or a proxy before the gateway, give up a request of which nothing has come back yet. By
    default it is unknown."""
    answer_seconds: Deadline | None = None
    """Seconds that the longest answers take, from their first token to their last. By default it is unknown."""
    gateway_receive_seconds: Deadline = 60
    """Seconds in which a client must have sent its request whole. The default is the gateway's own, as of all below."""
    gateway_queue_seconds: Deadline = 60
    """Seconds that a request may wait at the gateway for its first slot; then it is refused."""
    gateway_cold_seconds: Seconds = 0
    """Seconds that it may wait while none of its model's residents serves, where that is longer. Both are of policies that
    don't say it in `queue`."""
    gateway_connect_seconds: Deadline = 1
    """Seconds for a connection to a resident; then another one is tried."""
    gateway_deadline_seconds: Deadline = 120
    """Seconds from a request for a stream received whole to its first content, waiting and all attempts included; then it is
    refused."""
    gateway_answer_seconds: Deadline = 600
    """Seconds from any other request received whole to the end of its answer, likewise."""
    gateway_idle_seconds: Deadline = 300
    """Seconds of silence of an engine in the middle of an answer that count as a break."""
    gateway_stall_seconds: Deadline = 300
    """Seconds in which a client must take what was written to it."""
    gateway_drain_seconds: Deadline = 30
    """Seconds that requests may still take when the gateway ends (`emberpool gateway --drain-seconds`)."""


HPA_UP: Final = Pace(
    limits=(
        ChangeLimit(value=100, percent=True, period=15.0),
        ChangeLimit(value=4, percent=False, period=15.0),
    ),
    select=Select.MAX,
)
"""How fast a HorizontalPodAutoscaler grows by default: it doubles, or adds four pods, each 15 s (Kubernetes' documentation
of HorizontalPodAutoscaler, "Default Behavior")."""
HPA_DOWN: Final = Pace(limits=(ChangeLimit(value=100, percent=True, period=15.0),), select=Select.MAX)
"""How fast it shrinks by default: down to its minimum within 15 s (as above)."""

WAKE_SECONDS: Final = 0.02
"""How long an ordinary cause waits for company before a tick (`scaler.runtime.mailbox.IDLE_SECONDS`)."""
DECISION_SECONDS: Final = 0.001
"""From a sample to the decision (BENCHMARKS.md, both drills)."""
PUSH_SECONDS: Final = 0.01
"""Samples of a gateway leave at most this often (`scaler.gateway.samples.SMALLEST_GAP_SECONDS`); the last state always does."""
KV_SECONDS_PER_GIB: Final = 0.0033 / 4
"""Taking KV memory at promotion (BENCHMARKS.md, the reference engine on one H200: 4 GiB in 3.3 ms)."""
BUCKET_SECONDS: Final = 1.0
"""By how much a window may reach further back than it says: the width of a bucket (`scaler.core.windows`)."""
MOST_DEMOTIONS: Final = Limits().max_demotions
"""Demotions at once."""
MOST_PROMOTIONS: Final = Limits().max_promotions
"""Promotions at once."""
PROMOTE_DEADLINE_SECONDS: Final = 10.0
"""After this a promotion counts as failed, and the next seat is taken (`scaler.runtime.actuator.Deadlines.promote`)."""
SWITCH_DRAIN_SECONDS: Final = PROMOTE_DEADLINE_SECONDS / 2
"""What a switch gives the requests of the resident that leaves: half of the promotion's deadline (`scaler.runtime.actuator`)."""
POD_DRAIN_SECONDS: Final = 10.0
"""What the end of a pod gives the requests that its residents have accepted, whatever the pod's grace
(`warmpool.agent.seat.DRAIN_AT_END_SECONDS`)."""
STOP_SECONDS: Final = 5.0
"""What an engine gets to end after that; then it is killed (`warmpool.agent.life.STOP_GRACE_SECONDS`)."""
RETRY_AFTER_SECONDS: Final = 1
"""When a refused client is asked to come back (`scaler.gateway.settings.GatewaySettings.retry_after_seconds`)."""
WARN_SHARE: Final = 0.75
"""Below this share of what a resident serves at once alone, sharing seats loses most of its gain. A simulation over the
real arrivals of six models gave, in GPU-seconds held, 75,000 for paused spares of each model's own, 41,000 shared without a
cut, and 55,000 to 57,000 shared at three quarters."""
LOSE_SHARE: Final = 0.5
"""At this share the same simulation had sharing lose."""
