"""The file that lists the agents: fleets with their seats, and where each seat's agent is reached."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints

from scaler.errors import PolicyError
from scaler.policy.base import EXPECTS, Broken, Envelope, Name, PolicyModel
from scaler.policy.source import load_documents, model_for, validate

AgentUrl = Annotated[
    str,
    StringConstraints(pattern=r"^https?://[^/?#\s]+$"),
    Field(json_schema_extra={EXPECTS: "a base URL such as http://seat-0:9081, without a path"}),
]
"""Where an agent answers."""


class ListedSeat(PolicyModel):
    """One seat of the list."""

    name: Name
    """Name of the seat; its agent's configuration says the same."""
    agent: AgentUrl
    """Base URL of its agent, as the controller reaches it."""
    node: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Machine that it runs on. The default is the host of the agent's URL."""
    gpus: tuple[str, ...] = ()
    """UUIDs or indices of its GPUs. The default is what its agent says."""

    @property
    def host(self) -> str:
        """The host of the agent's URL, bare."""
        return urlsplit(self.agent).hostname or ""


class ListedFleet(PolicyModel):
    """One fleet of the list."""

    name: Name
    """Name of the fleet, as in its `Fleet` document."""
    seats: Annotated[tuple[ListedSeat, ...], Field(min_length=1)]
    """All its seats; it has no others and gets no others."""


class AgentListSpec(PolicyModel):
    """Which seats there are."""

    fleets: Annotated[tuple[ListedFleet, ...], Field(min_length=1)]
    """The fleets with their seats."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield names and addresses that are given twice."""
        fleets, seats, agents = Counter[str](), Counter[str](), Counter[str]()
        for number, fleet in enumerate(self.fleets):
            fleets[fleet.name] += 1
            if fleets[fleet.name] > 1:
                yield _twice(("fleets", number, "name"), fleet.name)
            for place, seat in enumerate(fleet.seats):
                path = ("fleets", number, "seats", place)
                seats[seat.name] += 1
                agents[seat.agent] += 1
                if seats[seat.name] > 1:
                    yield _twice((*path, "name"), seat.name)
                if agents[seat.agent] > 1:
                    yield _twice((*path, "agent"), seat.agent)


class AgentList(Envelope):
    """The agents of all seats."""

    kind: Literal["AgentList"]
    """Which format the document has."""
    spec: AgentListSpec
    """Which seats there are."""


def load_agents(path: Path) -> AgentList:
    """Read and check a list of agents.

    Raises:
        PolicyError: with all faults that were found, each at its place.
    """
    documents = load_documents([path])
    if len(documents) != 1:
        message = "a list of agents is one document"
        raise PolicyError((documents[1].fault((), message, "put policies into files of their own"),))
    checked = validate(model_for({"AgentList": AgentList}, documents[0]), documents[0])
    assert isinstance(checked, AgentList)
    return checked


def _twice(path: tuple[str | int, ...], value: str) -> Broken:
    return Broken(
        path=path, message=f"{value} is listed twice", hint="each seat has a name and an agent of its own"
    )
