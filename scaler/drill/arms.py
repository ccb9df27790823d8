"""The arms: the policies as written, and the same law with engines that start when they are wanted. PURE.

The comparison is fair where nothing else differs: the same load, windows, objectives, engine arguments and the same most
seats in all. Only where a further resident comes from is another: from a shared spare seat on which it waits paused, from
a new process, or from a process that is forked from one which has its imports done.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scaler.drill.scenario import Engine
from scaler.policy.compile import PolicySet, build_set
from scaler.policy.fleet import Fleet, Spare
from scaler.policy.scaling_policy import EngineType, ScalingPolicy, Serving
from warmpool.seats import FleetName, PolicyName


class ArmName(StrEnum):
    """Which of them."""

    WARM = "warm"
    """The policies as written."""
    COLD = "cold"
    """Without spares: each further resident is a new process."""
    COLD_ZYGOTE = "cold-zygote"
    """As cold, but each further resident is a fork of a zygote."""


COMPARED = (ArmName.WARM, ArmName.COLD)
"""The arms of a drill whose arms nobody has chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one arm runs.

    Attributes:
        name: which arm it is.
        policies: its fleets and policies.
        seat_budget: seats that all fleets together may have; None where the fleets' own limits say it all.
        zygote: whether engines are forked, as they are where nobody says otherwise.
    """

    name: ArmName
    policies: PolicySet
    seat_budget: int | None
    zygote: bool


def make_arm(name: ArmName, written: PolicySet, engine: Engine) -> Arm:
    """Derive an arm from the policies as they were written."""
    match name:
        case ArmName.WARM:
            return Arm(name=name, policies=with_engine(written, engine), seat_budget=None, zygote=True)
        case ArmName.COLD | ArmName.COLD_ZYGOTE:
            seats = sum(fleet.spec.max_seats for fleet in written.fleets.values())
            policies = with_engine(without_spares(written), engine)
            return Arm(name=name, policies=policies, seat_budget=seats, zygote=name is ArmName.COLD_ZYGOTE)


def with_engine(policies: PolicySet, engine: Engine) -> PolicySet:
    """Give every reference engine the scenario's settings, but for those that its policy sets itself."""
    flags = {
        "--max-num-seqs": engine.max_num_seqs,
        "--max-model-len": engine.max_model_len,
        "--threads": engine.threads,
        "--max-tokens-per-second": engine.max_tokens_per_second,
    }
    changed = [_with_flags(policy, flags) for policy in policies.policies.values()]
    return build_set([*policies.fleets.values(), *changed, *policies.settings])


def _with_flags(policy: ScalingPolicy, flags: Mapping[str, int | None]) -> ScalingPolicy:
    engine = policy.spec.engine
    if engine.type is not EngineType.REFERENCE:
        return policy
    named = {argument.partition("=")[0] for argument in engine.args}
    added = [
        text
        for flag, value in flags.items()
        if value is not None and flag not in named
        for text in (flag, str(value))
    ]
    engine = engine.model_copy(update={"args": (*engine.args, *added)})
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"engine": engine})})


def without_spares(policies: PolicySet) -> PolicySet:
    """Take the spares away: a fleet of its own for each policy, and each further resident a new seat.

    A fleet that several policies share becomes one per policy, `<fleet>-<policy>`, with as many seats as the law could
    give that policy on the shared one while the others keep their floors; the seat budget bounds them together. A fleet
    of one policy only loses its spares.
    """
    fleets: list[Fleet] = []
    renamed: dict[tuple[FleetName, PolicyName], str] = {}
    for name, fleet in policies.fleets.items():
        users = policies.policies_on(name)
        for policy in users:
            own = name if len(users) == 1 else _joined(name, policy, taken=policies.fleets)
            renamed[name, policy] = own
            fleets.append(_plain(fleet, own, _most_seats(policies, name, policy)))
    moved = [_moved(policy, renamed) for policy in policies.policies.values()]
    return build_set([*fleets, *moved, *policies.settings])


def _joined(fleet: str, policy: str, taken: Iterable[str]) -> str:
    """A name for the fleet that `policy` gets instead of `fleet`; names are labels and hold 63 characters."""
    name = f"{fleet[: 62 - len(policy[:40])]}-{policy[:40]}".strip("-")
    while name in taken:
        name = f"{name[:61]}-x"
    return name


def _plain(fleet: Fleet, name: str, max_seats: int) -> Fleet:
    spare = Spare(min=0, replenish=fleet.spec.spare.replenish)
    return fleet.model_copy(
        update={
            "metadata": fleet.metadata.model_copy(update={"name": name}),
            "spec": fleet.spec.model_copy(update={"max_seats": max_seats, "spare": spare}),
        }
    )


def _most_seats(policies: PolicySet, fleet: FleetName, policy: PolicyName) -> int:
    """Seats of `fleet` that `policy` could serve on while every other policy keeps its floor there; at least 1.

    A floor lives on the first fleet that its policy names.
    """
    floors = sum(
        other.spec.serving.min
        for name, other in policies.policies.items()
        if name != policy and other.spec.fleets[0].name == fleet
    )
    room = policies.fleets[fleet].spec.max_seats - floors
    return max(1, min(room, _serving_max(policies.policies[policy].spec.serving, room)))


def _serving_max(serving: Serving, otherwise: int) -> int:
    return otherwise if serving.max is None else serving.max


def _moved(policy: ScalingPolicy, renamed: Mapping[tuple[FleetName, PolicyName], str]) -> ScalingPolicy:
    name = PolicyName(policy.metadata.name)
    shares = tuple(
        share.model_copy(update={"name": renamed[FleetName(share.name), name]})
        for share in policy.spec.fleets
    )
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"fleets": shares})})
