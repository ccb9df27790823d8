"""Objects of a cluster as whoever wrote them left them: nothing about their form is taken for granted. PURE.

What isn't of the type that is asked for reads as absent. A check then says nothing of it: the API server refuses what has the
wrong type, so it can only be of another version.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

Json = Mapping[str, Any]
_NOTHING: Final[Json] = MappingProxyType({})


def at(value: object, *path: str | int) -> Any:  # noqa: ANN401 - JSON is what it is
    """Return what stands at a path; None where nothing does."""
    found: Any = value
    for part in path:
        if isinstance(found, Mapping) and isinstance(part, str):
            found = found.get(part)
        elif isinstance(found, list | tuple) and isinstance(part, int) and 0 <= part < len(found):
            found = found[part]
        else:
            return None
    return found


def mapping(value: object, *path: str | int) -> Json:
    """Return the mapping at a path; an empty one where there is none."""
    found = at(value, *path)
    return found if isinstance(found, Mapping) else _NOTHING


def listed(value: object, *path: str | int) -> Sequence[Any]:
    """Return the list at a path; an empty one where there is none."""
    found = at(value, *path)
    return found if isinstance(found, list | tuple) else ()


def mappings(value: object, *path: str | int) -> list[tuple[int, Json]]:
    """Return the mappings of the list at a path, with their index."""
    return [(index, each) for index, each in enumerate(listed(value, *path)) if isinstance(each, Mapping)]


def text(value: object, *path: str | int) -> str:
    """Return the text at a path; an empty one where there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def whole(value: object, *path: str | int) -> int | None:
    """Return the whole number at a path; None where there is none."""
    found = at(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def texts(value: object, *path: str | int) -> dict[str, str]:
    """Return the entries of the mapping at a path that are text: labels, annotations."""
    return {key: each for key, each in mapping(value, *path).items() if isinstance(each, str)}


@dataclass(frozen=True, slots=True)
class Object:
    """One object.

    Attributes:
        body: as it came.
    """

    body: Json

    @property
    def kind(self) -> str:
        """Its kind."""
        return text(self.body, "kind")

    @property
    def name(self) -> str:
        """Its name."""
        return text(self.body, "metadata", "name")

    @property
    def namespace(self) -> str:
        """Its namespace; empty for a kind without."""
        return text(self.body, "metadata", "namespace")

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return texts(self.body, "metadata", "labels")

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        return texts(self.body, "metadata", "annotations")

    @property
    def owners(self) -> Iterator[str]:
        """Kind and name of whoever controls it, as `Kind/name`."""
        for _, each in mappings(self.body, "metadata", "ownerReferences"):
            if each.get("controller") is True:
                yield f"{text(each, 'kind')}/{text(each, 'name')}"

    def __str__(self) -> str:
        """Name it as findings do: `Deployment serving/spares`."""
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


# ------------------------------------------------------------------ selecting


def selects(selector: object, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects an object: an empty one selects everything, and what can't be read nothing."""
    if not isinstance(selector, Mapping):
        return False
    exact = mapping(selector, "matchLabels")
    if any(labels.get(key) != value for key, value in exact.items()):
        return False
    return all(_holds(each, labels) for each in listed(selector, "matchExpressions"))


def _holds(requirement: object, labels: Mapping[str, str]) -> bool:
    key, operator = text(requirement, "key"), text(requirement, "operator")
    values = listed(requirement, "values")
    match operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False
