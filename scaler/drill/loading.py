"""From a scenario's file to a scenario and a policy set that fit together, or every fault with its place."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scaler.drill.scenario import SHAPES, Scenario
from scaler.errors import PolicyError, PolicyFault, UserError
from scaler.policy.base import Unsound, sound_entries
from scaler.policy.between import Judged, name_of, unseen
from scaler.policy.command_line import value_of
from scaler.policy.compile import JudgedFile, PolicySet, assemble, judge, judge_file
from scaler.policy.document import Contents, Document, load_contents
from scaler.policy.scaling_policy import EngineType, ScalingPolicy
from scaler.policy.source import examine
from scaler.policy.wording import closest, did_you_mean
from warmpool.seats import PolicyName

_KIND: Final = "DrillScenario"
_PACE: Final = "--max-tokens-per-second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A scenario with its policies, read and checked.

    Attributes:
        path: the scenario's file.
        scenario: its content.
        policies: its fleets and policies, as they were written.
        documents: the documents of those, where each part of them stands.
    """

    path: Path
    scenario: Scenario
    policies: PolicySet
    documents: Sequence[Document]

    @property
    def objectives(self) -> dict[str, float]:
        """Per policy of the drill, the TTFT objective in seconds, in the order of the scenario."""
        specs = self.policies.policy_specs
        return {
            model.policy: specs[PolicyName(model.policy)].ttft_objective
            for model in self.scenario.spec.models
        }


def load_scenario(path: Path, *, local: bool = True) -> Loaded:
    """Read a scenario and the policies that it names.

    Args:
        path: its file.
        local: it is for this machine, and not for a cluster that has engines of its own.

    Raises:
        PolicyError: with all faults of the scenario, of its policies, and between both, the scenario's first. What only
            follows from another fault isn't told.
        UserError: the path is a directory.
    """
    if path.is_dir():
        raise UserError(f"{path} is a directory", hint=f"name one scenario, such as {path / 'default.yaml'}")
    (contents,) = load_contents([path])
    return load_piped(contents, local=local)


def load_piped(contents: Contents, *, local: bool = True) -> Loaded:
    """Take a scenario from what is read already; the policies that it names lie beside its file, or in the working directory.

    Args:
        contents: what is read.
        local: as `load_scenario`.

    Raises:
        PolicyError: as `load_scenario`.
    """
    path = Path(contents.file)
    if not contents.documents:
        raise PolicyError(tuple(contents.faults))
    document, beside = _the_one(contents.documents)
    examined = examine({_KIND: Scenario}, document)
    scenario = examined.model if isinstance(examined.model, Scenario) else Scenario.partial({}, set())
    files, missing = _policy_files(document, scenario)
    inline, whole = _inline(document, scenario)
    own = JudgedFile(str(path), inline, contents.faults, whole=whole and contents.whole and not beside)
    told = [*beside, *_but_for(inline, examined.faults), *missing]
    told += _between(document, scenario, [own, *files], local=local)
    policies = assemble([replace(own, faults=[*own.faults, *told]), *files])
    documents = tuple(each.document for file in (own, *files) for each in file.judged)
    return Loaded(path=path, scenario=scenario, policies=policies, documents=documents)


def with_shape(loaded: Loaded, shape: str | None) -> Loaded:
    """Give every model's checkpoint another shape; None keeps what the scenario says.

    Raises:
        UserError: there is no such shape.
    """
    if shape is None:
        return loaded
    if shape not in SHAPES:
        known = f"known: {', '.join(SHAPES)}"
        raise UserError(f"there is no shape {shape!r}", hint=did_you_mean(shape, SHAPES) or known)
    spec = loaded.scenario.spec
    models = [model.model_copy(update={"shape": shape}) for model in spec.models]
    scenario = loaded.scenario.model_copy(update={"spec": spec.model_copy(update={"models": models})})
    return replace(loaded, scenario=scenario)


def _the_one(documents: Sequence[Document]) -> tuple[Document, tuple[PolicyFault, ...]]:
    """Return the scenario's document, and what is wrong with those that stand beside it."""
    chosen = next((each for each in documents if each.data.get("kind") == _KIND), documents[0])
    if not closest(chosen.data.get("kind"), [_KIND]):
        return chosen, ()
    hint = "put policies into a file of their own and name it under spec.policies.files"
    others = (each for each in documents if each is not chosen)
    return chosen, tuple(each.fault((), "a scenario's file holds one document", hint) for each in others)


def _policy_files(document: Document, scenario: Scenario) -> tuple[list[JudgedFile], list[PolicyFault]]:
    """Return what the files come to that a scenario names, and which of them aren't there."""
    found, missing = list[Path](), list[PolicyFault]()
    judged = list[JudgedFile]()
    folder = Path(document.file).parent
    with suppress(Unsound):
        for index, name in sound_entries(scenario.spec.policies.files):
            if (folder / name).exists():
                found.append(folder / name)
                continue
            message = f"there is no file {folder / name}"
            place = ("spec", "policies", "files", index)
            missing.append(document.fault(place, message, "paths are relative to this file"))
            judged.append(JudgedFile(str(folder / name), (), whole=False))
    return [*judged, *map(judge_file, load_contents(found))], missing


def _inline(document: Document, scenario: Scenario) -> tuple[list[Judged], bool]:
    """Return what the documents come to that stand in a scenario, and whether these are all that it has."""
    place = ("spec", "policies", "documents")
    try:
        written = scenario.spec.policies.documents
        files = len(list(sound_entries(scenario.spec.policies.files))) == len(scenario.spec.policies.files)
    except Unsound:
        return [], False
    indices = [index for index, _ in sound_entries(written)]
    judged = [judge(document.part((*place, index))) for index in indices]
    return judged, files and len(indices) == len(written)


def _but_for(inline: Sequence[Judged], faults: Iterable[PolicyFault]) -> Iterator[PolicyFault]:
    """Leave out what is told of documents that stand in the scenario: they say it better themselves."""
    told = {fault.path for each in inline for fault in each.faults}
    return (fault for fault in faults if fault.path not in told)


def _between(
    document: Document, scenario: Scenario, read: Sequence[JudgedFile], *, local: bool
) -> tuple[PolicyFault, ...]:
    """Return what is wrong between the scenario and its policies, as far as both can be read."""
    judged = [each for file in read for each in file.judged]
    policies = {
        name: each.item
        for each in judged
        if isinstance(each.item, ScalingPolicy) and (name := name_of(each.item))
    }
    models = dict[int, str]()
    whole = False
    with suppress(Unsound):
        for index, model in sound_entries(scenario.spec.models):
            with suppress(Unsound):
                models[index] = model.policy
        whole = len(models) == len(scenario.spec.models)
    absent = {name for name in models.values() if name not in policies}
    if not all(file.whole for file in read):
        hidden: Collection[str] = absent
    else:
        hidden = unseen(judged, absent, ScalingPolicy)
    return (
        *_without_policy(document, models, policies, hidden),
        *(_other_engines(document, models, policies) if local else ()),
        *(_own_paces(document, scenario, models, policies) if local else ()),
        *(_without_model(document, models, policies) if whole else ()),
    )


def _without_policy(
    document: Document, models: Mapping[int, str], policies: Collection[str], hidden: Collection[str]
) -> Iterator[PolicyFault]:
    for index, name in models.items():
        if name not in policies and name not in hidden:
            hint = did_you_mean(name, policies) or f"known: {', '.join(policies)}"
            yield document.fault(
                ("spec", "models", index, "policy"), f"there is no ScalingPolicy {name}", hint
            )


def _other_engines(
    document: Document, models: Mapping[int, str], policies: Mapping[str, ScalingPolicy]
) -> Iterator[PolicyFault]:
    for index, name in models.items():
        with suppress(Unsound, KeyError):
            engine = policies[name].spec.engine.type
            if engine is not EngineType.REFERENCE:
                message = f"{name} has engine type {engine}; a drill on one machine runs Reference"
                hint = "give the drill's policy engine: {type: Reference}"
                yield document.fault(("spec", "models", index, "policy"), message, hint)


def _own_paces(
    document: Document, scenario: Scenario, models: Mapping[int, str], policies: Mapping[str, ScalingPolicy]
) -> Iterator[PolicyFault]:
    """Tell of policies whose engines keep their pace while the scenario's is fitted to the machine."""
    with suppress(Unsound):
        if scenario.spec.fit is None:
            return
        for index, name in models.items():
            with suppress(Unsound, KeyError):
                if value_of(policies[name].spec.engine.args, _PACE) is not None:
                    message = f"{name} has {_PACE} in its own engine.args, and spec.fit sets the pace"
                    hint = f"leave {_PACE} to spec.engine.maxTokensPerSecond, or remove spec.fit"
                    yield document.fault(("spec", "models", index, "policy"), message, hint)


def _without_model(
    document: Document, models: Mapping[int, str], policies: Collection[str]
) -> Iterator[PolicyFault]:
    """Tell of policies that no model has, but for those that a misspelt one seems to mean."""
    drilled = set(models.values())
    meant = {closest(name, policies) for name in drilled if name not in policies}
    for name in policies:
        if name not in drilled and name not in meant:
            message = f"ScalingPolicy {name} has no model here"
            hint = f"add an entry with policy: {name}, or remove the policy"
            yield document.fault(("spec", "models"), message, hint)
