"""The file that lists the agents: fleets with their seats, and where each seat's agent is reached."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints

from scaler.errors import PolicyError
from scaler.policy.base import (
    EXPECTS,
    Broken,
    Envelope,
    Name,
    PolicyModel,
    Unsound,
    as_far_as_sound,
    sound_entries,
)
from scaler.policy.document import load_contents
from scaler.policy.files import in_file_order
from scaler.policy.repeated import repeated
from scaler.policy.source import examine

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
        yield from as_far_as_sound(
            repeated(("fleets",), self.fleets, "name"),
            self._seats_twice("name"),
            self._seats_twice("agent"),
        )

    def _seats_twice(self, key: Literal["name", "agent"]) -> Iterator[Broken]:
        """Seats of all fleets together differ."""
        counted = Counter[str]()
        for number, fleet in sound_entries(self.fleets):
            with suppress(Unsound):
                for place, seat in sound_entries(fleet.seats):
                    with suppress(Unsound):
                        value = getattr(seat, key)
                        counted[value] += 1
                        if counted[value] > 1:
                            yield Broken(
                                path=("fleets", number, "seats", place, key),
                                message=f"{value} is listed twice",
                                hint="each seat has a name and an agent of its own",
                            )


class AgentList(Envelope):
    """The agents of all seats."""

    kind: Literal["AgentList"]
    """Which format the document has."""
    spec: AgentListSpec
    """Which seats there are."""


def load_agents(path: Path) -> AgentList:
    """Read and check a list of agents.

    Raises:
        PolicyError: with all faults of the file and of its documents, each at its place.
    """
    contents = load_contents([path])
    documents = [document for each in contents for document in each.documents]
    faults = [fault for each in contents for fault in each.faults]
    examined = [examine({"AgentList": AgentList}, document) for document in documents]
    faults += (fault for each in examined for fault in each.faults)
    message, hint = "a list of agents is one document", "put policies into files of their own"
    faults += (document.fault((), message, hint) for document in documents[1:])
    if faults:
        raise PolicyError(in_file_order(faults, [each.file for each in contents]))
    (checked,) = (each.model for each in examined)
    assert isinstance(checked, AgentList)
    return checked
