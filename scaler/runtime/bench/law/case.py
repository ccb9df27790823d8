"""What one comparison is about: models with their requests, and what all arms have in common."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scaler.runtime.bench.law.arrivals import Trace
from scaler.runtime.bench.law.service import Gpu, Service
from warmpool.seats import PolicyName

LEAD_SECONDS = 300.0
"""Every run begins so much earlier than measuring does, with the end of the same requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model and who asks it.

    Attributes:
        name: its name.
        trace: its requests.
        gigabytes: its weights.
    """

    name: PolicyName
    trace: Trace
    gigabytes: float = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison.

    Attributes:
        groups: the models; each group may share seats.
        start: seconds that one model takes to start on a seat; a seat takes as long as its models together.
        objective: seconds after which a request counts as late.
        service: how fast a GPU is.
        gpu: what its memory holds.
        packed: a request goes to the first seat that has room, and not to the one with the fewest requests.
    """

    groups: Sequence[Sequence[Model]]
    start: float = 60.0
    objective: float = 1.0
    service: Service = field(default_factory=Service)
    gpu: Gpu = field(default_factory=Gpu)
    packed: bool = False

    @property
    def models(self) -> list[Model]:
        """All models."""
        return [model for group in self.groups for model in group]

    @property
    def seconds(self) -> float:
        """How long is measured: every trace goes round once."""
        return min(model.trace.seconds for model in self.models)

    def requests(self, model: Model) -> Iterator[tuple[float, float]]:
        """Yield time and service time of a model's requests, those of the lead first, at negative times."""
        whole = model.trace.seconds
        for arrival in model.trace.arrivals:
            if arrival.at >= whole - LEAD_SECONDS:
                yield arrival.at - whole, self.service.seconds(arrival)
        for arrival in model.trace.arrivals:
            yield arrival.at, self.service.seconds(arrival)

    def slots(self, model: Model, others: Sequence[float] = ()) -> int:
        """Return the requests that a model can have in flight on a seat where others' gigabytes are resident too."""
        return self.gpu.in_flight([model.gigabytes, *others], model.trace.tokens(0.99))

    def shared_slots(self, group: Sequence[Model], more: Sequence[float] = ()) -> dict[PolicyName, int]:
        """Return each model's slots on a seat where the whole group is resident, and so many gigabytes more; one at least."""
        found = {}
        for model in group:
            others = [other.gigabytes for other in group if other is not model]
            found[model.name] = max(1, self.slots(model, [*others, *more]))
        return found
