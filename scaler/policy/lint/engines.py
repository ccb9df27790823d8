"""What an engine that can't be paused costs, and where it can't live.

Emberpool keeps such an engine out of rotation and sends it nothing; its process, its KV memory and whatever it computes
on its own stay on the seat.
"""

from collections.abc import Iterator

from scaler.policy.fleet import Fleet
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import MIB, Finding, Place, Severity, Term
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import EngineType, ScalingPolicy
from scaler.policy.witnesses import lacks_witness
from warmpool.seats import PolicyName


def engine_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy whose engine is Generic, or whose residents have to agree."""
    for policy in subject.policies.policies.values():
        yield from _alone(subject, policy)
        if policy.spec.engine.type is not EngineType.GENERIC:
            continue
        yield _held(policy)
        yield _token_ids(policy)
        for index, fleet in enumerate(subject.fleets_of(policy)):
            yield from _shared(subject, policy, index, fleet)


def _alone(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A resident that never has a witness."""
    if lacks_witness(subject.policies, PolicyName(policy.metadata.name)):
        yield Finding(
            code=Code.WITNESS_MISSING,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "engine", "proof", "source"),
            message="its residents are to agree on what they answer, and at rest there is one seat at most: none of them ever serves",
            hint="raise spare.min of a fleet, or record what it answers and set source: Record",
        )


def _held(policy: ScalingPolicy) -> Finding:
    engine = policy.spec.engine
    terms = tuple(
        Term(
            name=name,
            value=None if value is None else float(value),
            unit=MIB,
            origin=origin if value is not None else f"unknown: set {origin}",
        )
        for name, value, origin in (
            ("weights and process", engine.paused_mib, "engine.pausedMiB"),
            ("KV memory, not released", engine.kv_mib, "engine.kvMiB"),
        )
    )
    known = [term.value for term in terms if term.value is not None]
    holds = f"{sum(known):.0f} MiB" if len(known) == len(terms) else "its whole GPU memory"
    return Finding(
        code=Code.GENERIC_NOT_PAUSED,
        severity=Severity.INFO,
        place=Place.of(policy, "spec", "engine", "type"),
        message=(
            f"a Generic engine can't be paused, only kept out of rotation: on every spare seat it goes on holding {holds}"
            " and may compute"
        ),
        hint="VLLM, SGLang and Reference are paused, and give their KV memory to whoever serves",
        terms=terms,
    )


def _token_ids(policy: ScalingPolicy) -> Finding:
    return Finding(
        code=Code.GENERIC_TOKEN_IDS,
        severity=Severity.INFO,
        place=Place.of(policy, "spec", "engine", "type"),
        message="a Generic engine is proven by the ids of its tokens: one that doesn't tell them is never proven, and never serves",
        hint="its /v1/completions has to answer return_token_ids with them, as vLLM's and SGLang's do",
    )


def _shared(subject: Subject, policy: ScalingPolicy, index: int, fleet: Fleet) -> Iterator[Finding]:
    others = [other.metadata.name for other in subject.policies_on(fleet) if other is not policy]
    if others:
        yield Finding(
            code=Code.GENERIC_SHARES,
            severity=Severity.ERROR,
            place=Place.of(policy, "spec", "fleets", index, "name"),
            message=(
                f"on {fleet.metadata.name} it shares seats with {', '.join(others)}, and an engine that can't be paused leaves"
                " them neither its KV memory nor the GPU's time"
            ),
            hint="give it a fleet of its own",
        )
