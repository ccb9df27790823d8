"""What documents must keep between each other: names, targets, model claims, and room for floors and spares."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scaler.errors import PolicyFault
from scaler.policy.base import Envelope
from scaler.policy.document import Document
from scaler.policy.fleet import Fleet
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.settings import Controller
from scaler.policy.wording import did_you_mean
from scaler.policy.xid_table import XidTable


@dataclass(frozen=True, slots=True)
class Checked:
    """A document that is right by itself.

    Attributes:
        document: where everything of it stands.
        item: what it says.
    """

    document: Document
    item: Envelope


def faults_between(checked: Sequence[Checked]) -> Iterator[PolicyFault]:
    """Yield what is wrong between documents that are right by themselves."""
    fleets = [(each.document, each.item) for each in checked if isinstance(each.item, Fleet)]
    policies = [(each.document, each.item) for each in checked if isinstance(each.item, ScalingPolicy)]
    repeated = [*_repeated_names(fleets), *_repeated_names(policies)]
    yield from repeated
    yield from _one_target_twice(fleets)
    for kind in (Controller, XidTable):
        yield from _one_only([(each.document, each.item) for each in checked if isinstance(each.item, kind)])
    by_name = {fleet.metadata.name: (document, fleet) for document, fleet in fleets}
    unknown = [fault for document, policy in policies for fault in _unknown_fleets(document, policy, by_name)]
    yield from unknown
    yield from _models_claimed_twice(policies)
    yield from _one_port_twice(policies)
    if not repeated and not unknown:
        yield from _no_room(by_name, policies)
        yield from _budget_below_floors(checked, by_name, policies)


def _repeated_names(objects: Sequence[tuple[Document, Envelope]]) -> Iterator[PolicyFault]:
    first: dict[str, Document] = {}
    for document, item in objects:
        name = item.metadata.name
        if name in first:
            message = (
                f"the {item.kind} {name} is already defined in {_place(first[name], 'metadata', 'name')}"
            )
            yield document.fault(("metadata", "name"), message, "rename or remove one of the two")
        first.setdefault(name, document)


def _one_only(objects: Sequence[tuple[Document, Envelope]]) -> Iterator[PolicyFault]:
    for document, item in objects[1:]:
        message = f"there is a {item.kind} already, in {_place(objects[0][0], 'kind')}; a set has one at most"
        yield document.fault(("kind",), message, "merge the two")


def _one_target_twice(fleets: Sequence[tuple[Document, Fleet]]) -> Iterator[PolicyFault]:
    """Two fleets on one workload would both resize it."""
    first: dict[tuple[str, str, str, str], tuple[Document, Fleet]] = {}
    for document, fleet in fleets:
        other = first.setdefault(fleet.target, (document, fleet))
        if other[1].metadata.name != fleet.metadata.name:
            what = f"{fleet.target[2]} {fleet.target[3]}"
            message = f"{what} is the target of fleet {other[1].metadata.name} already, in {_place(other[0], 'kind')}"
            path = ("spec", "target", "name") if fleet.spec.target else ("metadata", "name")
            yield document.fault(path, message, "give each fleet a workload of its own")


def _place(document: Document, *path: str | int) -> str:
    return f"{document.file}:{document.position(path)[0]}"


def _unknown_fleets(
    document: Document, policy: ScalingPolicy, fleets: Mapping[str, tuple[Document, Fleet]]
) -> Iterator[PolicyFault]:
    for index, share in enumerate(policy.spec.fleets):
        path = ("spec", "fleets", index, "name")
        if share.name not in fleets:
            known = f"known fleets: {', '.join(fleets)}" if fleets else "add a document of kind Fleet"
            hint = did_you_mean(share.name, fleets) or known
            yield document.fault(path, f"there is no fleet {share.name}", hint)
            continue
        theirs, ours = fleets[share.name][1].metadata.namespace, policy.metadata.namespace
        if theirs != ours:
            message = f"fleet {share.name} is in namespace {theirs}, this policy in {ours}"
            yield document.fault(path, message, "a policy and its fleets share one namespace")


def _models_claimed_twice(policies: Sequence[tuple[Document, ScalingPolicy]]) -> Iterator[PolicyFault]:
    first: dict[str, tuple[Document, ScalingPolicy]] = {}
    for document, policy in policies:
        for index, model in enumerate(policy.models):
            path = ("metadata", "name") if policy.spec.models is None else ("spec", "models", index)
            if model in first and first[model][1].metadata.name != policy.metadata.name:
                other = first[model][1].metadata.name
                message = f"the model name {model} belongs to policy {other} already"
                yield document.fault(
                    path, message, f"list it in one policy; see {_place(first[model][0], 'metadata', 'name')}"
                )
            first.setdefault(model, (document, policy))


def _one_port_twice(policies: Sequence[tuple[Document, ScalingPolicy]]) -> Iterator[PolicyFault]:
    """The residents of a seat are in one pod, where a port is one resident's; each pair of policies is told once."""
    told: set[tuple[str, str]] = set()
    first: dict[tuple[str, int], tuple[Document, ScalingPolicy]] = {}
    for document, policy in policies:
        port = policy.spec.engine.port
        for share in policy.spec.fleets if port is not None else ():
            other_document, other = first.setdefault((share.name, port or 0), (document, policy))
            pair = (other.metadata.name, policy.metadata.name)
            if other is policy or pair[0] == pair[1] or pair in told:
                continue
            told.add(pair)
            place = _place(other_document, "spec", "engine", "port")
            message = f"port {port} is that of policy {pair[0]} already, in {place}, and both are on each seat of {share.name}"
            yield document.fault(
                ("spec", "engine", "port"), message, "give each policy of a fleet a port of its own"
            )


def _budget_below_floors(
    checked: Sequence[Checked],
    fleets: Mapping[str, tuple[Document, Fleet]],
    policies: Sequence[tuple[Document, ScalingPolicy]],
) -> Iterator[PolicyFault]:
    """Find a budget that what always serves doesn't fit into, even if each resident is where a seat has the fewest GPUs.

    What schedules ask for needn't come at one time; `policy lint` looks at it.
    """
    found = next((each for each in checked if isinstance(each.item, Controller)), None)
    if found is None or not isinstance(found.item, Controller) or found.item.spec.gpu_budget is None:
        return
    terms = list[tuple[str, int]]()
    for _, policy in policies:
        what, floor = f"{policy.metadata.name} serving.min", policy.spec.serving.min
        fewest = min(fleets[share.name][1].spec.seat.gpus for share in policy.spec.fleets)
        if floor and fewest:
            terms.append((what if fewest == 1 else f"{what} × {fewest} GPUs", floor * fewest))
    needed, budget = sum(number for _, number in terms), found.item.spec.gpu_budget
    if needed > budget:
        arithmetic = " + ".join(f"{number} ({what})" for what, number in terms)
        message = f"floors need {arithmetic} = {_gpus(needed)}, and the budget is {budget}"
        yield found.document.fault(("spec", "gpuBudget"), message, "raise gpuBudget, or lower serving.min")


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def _no_room(
    fleets: Mapping[str, tuple[Document, Fleet]], policies: Sequence[tuple[Document, ScalingPolicy]]
) -> Iterator[PolicyFault]:
    """Find sets of fleets that can't hold the floors that only they can hold, with their spares beside them.

    The sets looked at are those that some policy names: a floor that finds no room anywhere shows up in its own.
    """
    seen: set[frozenset[str]] = set()
    for document, policy in policies:
        names = frozenset(share.name for share in policy.spec.fleets)
        if names in seen:
            continue
        seen.add(names)
        confined = [other for _, other in policies if {share.name for share in other.spec.fleets} <= names]
        chosen = [fleets[share.name][1] for share in policy.spec.fleets]
        floors = [_highest_floor(other) for other in confined]
        spares = [(f"{fleet.metadata.name} spare.min", fleet.spec.spare.min) for fleet in chosen]
        terms = [(what, number) for what, number in (*floors, *spares) if number]
        needed = sum(number for _, number in terms)
        room = sum(fleet.spec.max_seats for fleet in chosen)
        if needed <= room or not any(number for _, number in floors):
            continue
        arithmetic = " + ".join(f"{number} ({what})" for what, number in terms)
        limit = " + ".join(f"{fleet.spec.max_seats} ({fleet.metadata.name} maxSeats)" for fleet in chosen)
        message = f"floors and spares need {arithmetic} = {needed} seats, but there are at most {limit}"
        message += f" = {room}" if len(chosen) > 1 else ""
        hint = "raise maxSeats, or lower serving.min or spare.min"
        if len(chosen) == 1:
            yield fleets[chosen[0].metadata.name][0].fault(("spec", "maxSeats"), message, hint)
        else:
            yield document.fault(("spec", "serving", "min"), message, hint)


def _highest_floor(policy: ScalingPolicy) -> tuple[str, int]:
    """Return the most residents that a policy's floors ever ask for, and where that is written."""
    name, highest = f"{policy.metadata.name} serving.min", policy.spec.serving.min
    for schedule in policy.spec.schedules:
        if schedule.min_serving > highest:
            name = f"{policy.metadata.name} schedule {schedule.name} minServing"
            highest = schedule.min_serving
    return name, highest
