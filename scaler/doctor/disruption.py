"""Who keeps seats from being evicted: PodDisruptionBudgets that overlap, block, or are missing. PURE.

A pod that two budgets select can't be evicted at all. Seats change what they are while they run, so budgets are held against
what a seat of each template may become, and not only against the pods of this moment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Object, at, mapping, selects, text, texts, whole
from scaler.doctor.picture import OPERATED_LABELS, Part, Picture, Seen, Template
from warmpool.seats import SEAT_LABEL, SERVING_LABEL_PREFIX, SeatValue

_NONE: Final = frozenset({0, "0", "0%"})
_ALL: Final = "100%"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Seats that look alike, and the budgets that select them.

    Attributes:
        what: them, in words.
        budgets: those budgets.
    """

    what: str
    budgets: tuple[Object, ...]


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what is wrong with the budgets that select seats."""
    if Part.BUDGETS not in picture.objects:
        return
    for fleet in picture.fleets:
        budgets = [each for each in picture.all(Part.BUDGETS) if each.namespace == fleet.namespace]
        kinds = [_Kind(what, _taking(budgets, labels)) for what, labels in _kinds(fleet)]
        selecting = {str(each): each for kind in kinds for each in kind.budgets}
        yield from _overlaps(kinds, list(selecting.values()), fleet)
        for budget in selecting.values():
            yield from _blocks(budget)
            yield from _unready(budget)
        yield from _missing(picture, fleet, budgets)


def _taking(budgets: Sequence[Object], labels: Mapping[str, str]) -> tuple[Object, ...]:
    return tuple(each for each in budgets if selects(at(each.body, "spec", "selector"), labels))


def _kinds(fleet: Seen) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what seats of a fleet may become, in words, with their labels; pods that look alike once."""
    for template in fleet.templates:
        yield "spare seats", {**template.labels, SEAT_LABEL: SeatValue.SPARE}
        for resident in template.residents:
            yield f"seats that serve {resident.policy}", _serving(template, str(resident.policy))
    for labels, name in {frozenset(pod.labels.items()): pod.name for pod in fleet.pods}.items():
        yield f"pod {name}", dict(labels)


def _serving(template: Template, policy: str) -> Mapping[str, str]:
    return {**template.labels, SEAT_LABEL: SeatValue.SERVING, f"{SERVING_LABEL_PREFIX}{policy}": "true"}


def _overlaps(kinds: Sequence[_Kind], budgets: Sequence[Object], fleet: Seen) -> Iterator[Finding]:
    """Yield each budget that takes what one before it takes already."""
    ordered = sorted(budgets, key=_own_first)
    for index, other in enumerate(ordered):
        shared = {
            str(one): kind.what
            for one in ordered[:index]
            for kind in reversed(kinds)
            if one in kind.budgets and other in kind.budgets
        }
        if shared:
            yield Finding(
                code=Code.BUDGETS_OVERLAP,
                severity=Severity.ERROR,
                object=str(other),
                path="spec.selector",
                message=f"it selects {next(iter(shared.values()))} of fleet {fleet.name}, and so does {', '.join(shared)}: a pod"
                " with two budgets can't be evicted, so no node that holds it can be drained",
                mend=mends.of("delete", other),
            )


def _own_first(budget: Object) -> tuple[bool, str]:
    """Order those that select by what a seat is worth at the moment before those that don't know of seats."""
    keys = [*texts(budget.body, "spec", "selector", "matchLabels")]
    return not any(key.startswith(OPERATED_LABELS) for key in keys), budget.name


def _blocks(budget: Object) -> Iterator[Finding]:
    spec = mapping(budget.body, "spec")
    most, least = spec.get("maxUnavailable"), spec.get("minAvailable")
    expected = whole(budget.body, "status", "expectedPods")
    by_worth = not _own_first(budget)[0]
    enough = isinstance(least, int) and expected is not None and 0 < expected <= least and not by_worth
    if not (isinstance(most, int | str) and most in _NONE) and least != _ALL and not enough:
        return
    path = "maxUnavailable" if "maxUnavailable" in spec else "minAvailable"
    yield Finding(
        code=Code.BUDGET_BLOCKS,
        severity=Severity.WARNING,
        object=str(budget),
        path=f"spec.{path}",
        message=f"{path}: {spec.get(path)} allows no eviction at all: draining a node waits for ever",
        mend=mends.merge_patch(budget, {"spec": {"maxUnavailable": 1, "minAvailable": None}}),
    )


def _unready(budget: Object) -> Iterator[Finding]:
    if text(budget.body, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return
    yield Finding(
        code=Code.BUDGET_KEEPS_UNREADY,
        severity=Severity.NOTE,
        object=str(budget),
        path="spec.unhealthyPodEvictionPolicy",
        message="seats that aren't ready, as those that start, are kept from eviction as well while too few others are ready",
        mend=mends.merge_patch(budget, {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}),
    )


def _missing(picture: Picture, fleet: Seen, budgets: Sequence[Object]) -> Iterator[Finding]:
    for template in fleet.templates:
        for resident in template.residents:
            policy = str(resident.policy)
            floor = _floor(picture, policy)
            if floor == 0 or _taking(budgets, _serving(template, policy)):
                continue
            yield Finding(
                code=Code.BUDGET_MISSING,
                severity=Severity.NOTE,
                object=f"PodDisruptionBudget {fleet.namespace}/{policy}",
                message=f"no budget keeps seats that serve {policy}: a drained node may take all of them at once",
                mend=mends.kubectl(
                    "create",
                    "poddisruptionbudget",
                    policy,
                    f"--selector={SERVING_LABEL_PREFIX}{policy}=true",
                    f"--min-available={floor}",
                    namespace=fleet.namespace,
                ),
            )


def _floor(picture: Picture, policy: str) -> int:
    """Return how many residents of a policy always serve; one where nobody says, and none of a policy that isn't there."""
    if picture.wishes is None:
        return 1
    wish = picture.wishes.policies.get(policy)
    return 0 if wish is None else wish.serving_min
