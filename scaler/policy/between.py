"""What documents must keep between each other: names, targets, model claims, and room for floors and spares.

A document in which something is wrong is held against the others all the same, as far as it is right. What can't be told
because of it isn't: a fleet that nobody can read is not missing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from scaler.errors import PolicyFault
from scaler.policy.base import Envelope, Unsound, sound_entries
from scaler.policy.document import Document, look_up
from scaler.policy.fleet import Fleet
from scaler.policy.room import no_room
from scaler.policy.scaling_policy import FleetShare, ScalingPolicy
from scaler.policy.settings import Controller
from scaler.policy.source import Unrecognized
from scaler.policy.wording import closest, did_you_mean
from scaler.policy.xid_table import XidTable


@dataclass(frozen=True, slots=True)
class Judged:
    """A document, and what it comes to by itself.

    Attributes:
        document: where everything of it stands.
        item: what it says; partial if there are faults. None for what is no document of ours.
        faults: what is wrong with it by itself.
    """

    document: Document
    item: Envelope | None
    faults: Sequence[PolicyFault] = ()


Item = TypeVar("Item", bound=Envelope)
_NAME: Final = ("metadata", "name")


def faults_between(judged: Sequence[Judged], *, whole: bool) -> Iterator[PolicyFault]:
    """Yield what is wrong between documents.

    Args:
        judged: the documents.
        whole: whether these are all documents that there are.
    """
    fleets, policies = _of_kind(judged, Fleet), _of_kind(judged, ScalingPolicy)
    yield from _repeated_names(fleets)
    yield from _repeated_names(policies)
    yield from _one_target_twice(fleets)
    yield from _one_only(_of_kind(judged, Controller))
    yield from _one_only(_of_kind(judged, XidTable))
    by_name = _by_name(fleets)
    known = {name: theirs[0] for name, theirs in by_name.items()}
    yield from _missing_fleets(judged, policies, known) if whole else ()
    yield from _other_namespaces(policies, known)
    yield from _models_claimed_twice(policies)
    yield from _one_port_twice(policies)
    once = {name: theirs[0] for name, theirs in by_name.items() if len(theirs) == 1}
    unique = [theirs[0] for theirs in _by_name(policies).values() if len(theirs) == 1]
    yield from no_room(once, unique)
    yield from _budget_below_floors(_of_kind(judged, Controller), once, unique)


def _of_kind(judged: Sequence[Judged], kind: type[Item]) -> list[tuple[Document, Item]]:
    return [(each.document, each.item) for each in judged if isinstance(each.item, kind)]


def name_of(item: Envelope) -> str:
    """Return an object's name; empty where it is wrong."""
    with suppress(Unsound):
        return item.metadata.name
    return ""


def _by_name(objects: Sequence[tuple[Document, Item]]) -> dict[str, list[tuple[Document, Item]]]:
    found: dict[str, list[tuple[Document, Item]]] = {}
    for document, item in objects:
        if name := name_of(item):
            found.setdefault(name, []).append((document, item))
    return found


def _repeated_names(objects: Sequence[tuple[Document, Item]]) -> Iterator[PolicyFault]:
    for name, same in _by_name(objects).items():
        first = same[0][0]
        for document, item in same[1:]:
            message = f"the {type(item).__name__} {name} is already defined in {_place(first, *_NAME)}"
            yield document.fault(_NAME, message, "rename or remove one of the two")


def _one_only(objects: Sequence[tuple[Document, Item]]) -> Iterator[PolicyFault]:
    for document, item in objects[1:]:
        kind, place = type(item).__name__, _place(objects[0][0], "kind")
        message = f"there is a {kind} already, in {place}; a set has one at most"
        yield document.fault(("kind",), message, "merge the two")


def _one_target_twice(fleets: Sequence[tuple[Document, Fleet]]) -> Iterator[PolicyFault]:
    """Two fleets on one workload would both resize it."""
    first: dict[tuple[str, str, str, str], tuple[Document, Fleet]] = {}
    for document, fleet in fleets:
        with suppress(Unsound):
            other_document, other = first.setdefault(fleet.target, (document, fleet))
            if other is fleet or name_of(other) == name_of(fleet) != "":
                continue
            what = f"{fleet.target[2]} {fleet.target[3]}"
            whose = f"fleet {name_of(other)}" if name_of(other) else "another fleet"
            message = f"{what} is the target of {whose} already, in {_place(other_document, 'kind')}"
            path = ("spec", "target", "name") if fleet.spec.target else _NAME
            yield document.fault(path, message, "give each fleet a workload of its own")


def _place(document: Document, *path: str | int) -> str:
    return f"{document.file}:{document.position(path)[0]}"


def _missing_fleets(
    judged: Sequence[Judged],
    policies: Sequence[tuple[Document, ScalingPolicy]],
    fleets: Mapping[str, tuple[Document, Fleet]],
) -> Iterator[PolicyFault]:
    """Tell of names that no fleet has, but for those that one may have that can't be read."""
    missing = [
        (document, index, share.name)
        for document, policy in policies
        for index, share in _shares(policy)
        if share.name not in fleets
    ]
    hidden = unseen(judged, {name for _, _, name in missing}, Fleet)
    for document, index, name in missing:
        if name not in hidden:
            known = f"known fleets: {', '.join(fleets)}" if fleets else "add a document of kind Fleet"
            path = ("spec", "fleets", index, "name")
            yield document.fault(path, f"there is no fleet {name}", did_you_mean(name, fleets) or known)


def _shares(policy: ScalingPolicy) -> Iterator[tuple[int, FleetShare]]:
    """Yield those entries of a policy's fleets whose name is right."""
    with suppress(Unsound):
        for index, share in sound_entries(policy.spec.fleets):
            with suppress(Unsound):
                _ = share.name
                yield index, share


def unseen(judged: Sequence[Judged], missing: Collection[str], kind: type[Envelope]) -> Collection[str]:
    """Return which of the objects of a kind that are missing may be there.

    A document whose kind or version is wrong may be the one of its name. If its name is wrong, it may be the one that is
    called nearly so; and where none is, an object of the kind may be any.
    """
    found = set[str]()
    for each in judged:
        written = look_up(each.document.data, *_NAME)
        readable = isinstance(written, str) and not each.document.doubtful(*_NAME)
        if not isinstance(each.item, kind | Unrecognized) and each.document.data.get("kind") != kind.__name__:
            continue
        if each.item is None or name_of(each.item):
            found.update(name for name in missing if name == written)
            continue
        near = {name for name in missing if closest(name, [written])} if readable else set[str]()
        found.update(near or (missing if isinstance(each.item, kind) else ()))
    return found


def _other_namespaces(
    policies: Sequence[tuple[Document, ScalingPolicy]], fleets: Mapping[str, tuple[Document, Fleet]]
) -> Iterator[PolicyFault]:
    for document, policy in policies:
        for index, share in _shares(policy):
            with suppress(Unsound, KeyError):
                theirs, ours = fleets[share.name][1].metadata.namespace, policy.metadata.namespace
                if theirs != ours:
                    path = ("spec", "fleets", index, "name")
                    message = f"fleet {share.name} is in namespace {theirs}, this policy in {ours}"
                    yield document.fault(path, message, "a policy and its fleets share one namespace")


def _models_claimed_twice(policies: Sequence[tuple[Document, ScalingPolicy]]) -> Iterator[PolicyFault]:
    first: dict[str, tuple[Document, ScalingPolicy]] = {}
    for document, policy in policies:
        with suppress(Unsound):
            for index, model in sound_entries(policy.models):
                other_document, other = first.setdefault(model, (document, policy))
                if other is policy or name_of(other) == name_of(policy) != "":
                    continue
                path = _NAME if policy.spec.models is None else ("spec", "models", index)
                message = f"the model name {model} belongs to {_whose(other)} already"
                hint = f"list it in one policy; see {_place(other_document, *_NAME)}"
                yield document.fault(path, message, hint)


def _whose(policy: ScalingPolicy) -> str:
    return f"policy {name_of(policy)}" if name_of(policy) else "another policy"


def _one_port_twice(policies: Sequence[tuple[Document, ScalingPolicy]]) -> Iterator[PolicyFault]:
    """The residents of a seat are in one pod, where a port is one resident's; each pair of policies is told once."""
    first: dict[tuple[str, int], tuple[Document, ScalingPolicy]] = {}
    for document, policy in policies:
        told = list[ScalingPolicy]()
        with suppress(Unsound):
            port = policy.spec.engine.port
            for _, share in sound_entries(policy.spec.fleets) if port is not None else ():
                with suppress(Unsound):
                    other_document, other = first.setdefault((share.name, port or 0), (document, policy))
                    same = other is policy or name_of(other) == name_of(policy) != ""
                    if same or any(other is each for each in told):
                        continue
                    told.append(other)
                    place = _place(other_document, "spec", "engine", "port")
                    message = f"port {port} is that of {_whose(other)} already, in {place}, and both are on each seat of {share.name}"
                    hint = "give each policy of a fleet a port of its own"
                    yield document.fault(("spec", "engine", "port"), message, hint)


def _budget_below_floors(
    controllers: Sequence[tuple[Document, Controller]],
    fleets: Mapping[str, tuple[Document, Fleet]],
    policies: Sequence[tuple[Document, ScalingPolicy]],
) -> Iterator[PolicyFault]:
    """Find a budget that what always serves doesn't fit into, even if each resident is where a seat has the fewest GPUs.

    What schedules ask for needn't come at one time; `policy lint` looks at it. What is wrong itself counts as nothing.
    """
    with suppress(Unsound):
        for document, controller in controllers[:1]:
            budget = controller.spec.gpu_budget
            if budget is None:
                continue
            terms = list(_gpu_terms(fleets, policies))
            needed = sum(number for _, number in terms)
            if needed > budget:
                arithmetic = " + ".join(f"{number} ({what})" for what, number in terms)
                message = f"floors need {arithmetic} = {_gpus(needed)}, and the budget is {budget}"
                yield document.fault(("spec", "gpuBudget"), message, "raise gpuBudget, or lower serving.min")


def _gpu_terms(
    fleets: Mapping[str, tuple[Document, Fleet]], policies: Sequence[tuple[Document, ScalingPolicy]]
) -> Iterator[tuple[str, int]]:
    """Yield how many GPUs each policy's floor takes at least, as far as its fleets are known."""
    for _, policy in policies:
        with suppress(Unsound):
            what, floor = f"{policy.metadata.name} serving.min", policy.spec.serving.min
            names = [share.name for share in policy.spec.fleets]
            if not floor or any(name not in fleets for name in names):
                continue
            fewest = min(fleets[name][1].spec.seat.gpus for name in names)
            if fewest:
                yield (what if fewest == 1 else f"{what} × {fewest} GPUs"), floor * fewest


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"
