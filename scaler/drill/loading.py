"""From a scenario's file to a scenario and a policy set that fit together, or every fault with its place."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ruamel.yaml import YAML

from scaler.drill.scenario import SHAPES, Scenario
from scaler.errors import PolicyError, PolicyFault, UserError
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.scaling_policy import EngineType
from scaler.policy.source import Document, load_documents, model_for, parse_documents, validate
from scaler.policy.wording import did_you_mean
from warmpool.seats import PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A scenario with its policies, read and checked.

    Attributes:
        path: the scenario's file.
        scenario: its content.
        policies: its fleets and policies, as they were written.
    """

    path: Path
    scenario: Scenario
    policies: PolicySet

    @property
    def objectives(self) -> dict[str, float]:
        """Per policy of the drill, the TTFT objective in seconds, in the order of the scenario."""
        specs = self.policies.policy_specs
        return {
            model.policy: specs[PolicyName(model.policy)].ttft_objective
            for model in self.scenario.spec.models
        }


def load_scenario(path: Path) -> Loaded:
    """Read a scenario and the policies that it names.

    Raises:
        PolicyError: with all faults of the scenario; once it is right, with all of its policies and between both.
    """
    document, scenario = _read(path)
    policies = _policies(path, document, scenario)
    faults = tuple(_misfits(document, scenario, policies))
    if faults:
        raise PolicyError(faults)
    return Loaded(path=path, scenario=scenario, policies=policies)


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


def _read(path: Path) -> tuple[Document, Scenario]:
    if path.is_dir():
        raise UserError(f"{path} is a directory", hint=f"name one scenario, such as {path / 'default.yaml'}")
    documents = load_documents([path])
    kind = model_for({"DrillScenario": Scenario}, documents[0])
    if len(documents) != 1:
        hint = "put policies into a file of their own and name it under spec.policies.files"
        raise PolicyError((documents[1].fault((), "a scenario's file holds one document", hint),))
    scenario = validate(kind, documents[0])
    assert isinstance(scenario, Scenario)
    return documents[0], scenario


def _policies(path: Path, document: Document, scenario: Scenario) -> PolicySet:
    wanted = scenario.spec.policies
    missing = tuple(
        document.fault(
            ("spec", "policies", "files", index),
            f"there is no file {path.parent / name}",
            "paths are relative to this file",
        )
        for index, name in enumerate(wanted.files)
        if not (path.parent / name).exists()
    )
    if missing:
        raise PolicyError(missing)
    documents = load_documents([path.parent / name for name in wanted.files])
    inline = {f"{path}#{index}": index for index in range(len(wanted.documents))}
    for name, index in inline.items():
        documents += parse_documents(_as_yaml(wanted.documents[index]), name)
    try:
        return compile_set(documents)
    except PolicyError as error:
        raise PolicyError(tuple(_placed(fault, inline, document) for fault in error.faults)) from error


def _as_yaml(value: object) -> str:
    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(value, text)
    return text.getvalue()


def _placed(fault: PolicyFault, inline: dict[str, int], document: Document) -> PolicyFault:
    """Point a fault of a document that stands inside the scenario at its place there."""
    if fault.file not in inline:
        return fault
    parts = re.findall(r"[^.\[\]]+", fault.path)
    inner = tuple(int(part) if part.isdecimal() else part for part in parts)
    return document.fault(
        ("spec", "policies", "documents", inline[fault.file], *inner), fault.message, fault.hint
    )


def _misfits(document: Document, scenario: Scenario, policies: PolicySet) -> Iterator[PolicyFault]:
    """Yield what is wrong between the scenario and its policies."""
    drilled = {model.policy for model in scenario.spec.models}
    for index, model in enumerate(scenario.spec.models):
        place = ("spec", "models", index, "policy")
        policy = policies.policies.get(PolicyName(model.policy))
        if policy is None:
            known = f"known: {', '.join(policies.policies)}"
            hint = did_you_mean(model.policy, policies.policies) or known
            yield document.fault(place, f"there is no ScalingPolicy {model.policy}", hint)
        elif policy.spec.engine.type is not EngineType.REFERENCE:
            message = f"{model.policy} has engine type {policy.spec.engine.type}; a drill on one machine runs Reference"
            yield document.fault(place, message, "give the drill's policy engine: {type: Reference}")
    for name in policies.policies:
        if name not in drilled:
            message = f"ScalingPolicy {name} has no model here"
            yield document.fault(
                ("spec", "models"), message, f"add an entry with policy: {name}, or remove the policy"
            )
