"""The set that `emberpool local` makes up when nobody wrote one: a fleet `local`, and a policy for each checkpoint."""

from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from scaler.errors import UserError
from scaler.policy.base import API_VERSION, Metadata, Name
from scaler.policy.compile import PolicySet, build_set
from scaler.policy.fleet import Fleet, FleetSpec, SeatShape, Spare
from scaler.policy.scaling_policy import FleetShare, ScalingPolicy, ScalingPolicySpec, Serving

FLEET_NAME: Final = "local"
"""Name of the fleet."""

_NAME: Final = TypeAdapter(Name)


def default_set(names: Sequence[str], *, seats: int, target_in_flight: int = 8, gpus: int = 0) -> PolicySet:
    """Make the set for checkpoints that nobody wrote policies for.

    All seats exist from the start and every checkpoint is resident on each of them. Where there is a seat for each,
    each has one resident that always serves; otherwise none has a floor, and the seats go to whoever has requests.

    Args:
        names: policy name of each checkpoint.
        seats: seats of the fleet.
        target_in_flight: requests in flight that one seat holds.
        gpus: GPUs of one seat.

    Raises:
        UserError: there is no name, or one that can't be a policy's.
    """
    if not names:
        raise UserError("no checkpoint was given", hint="name one: --checkpoint NAME=DIR")
    for name in names:
        _check(name)
    floor = 1 if len(names) <= seats else 0
    fleet = Fleet(
        api_version=API_VERSION,
        kind="Fleet",
        metadata=Metadata(name=FLEET_NAME),
        spec=FleetSpec(
            max_seats=seats, seat=SeatShape(gpus=gpus), spare=Spare(min=seats - floor * len(names))
        ),
    )
    return build_set([fleet, *(_policy(name, floor, target_in_flight) for name in names)])


def _check(name: str) -> None:
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        message = (
            f"{name!r} can't be a policy's name: it needs lower-case letters, digits and - only, at most 63"
        )
        raise UserError(message, hint="give the checkpoint another name: --checkpoint NAME=DIR") from error


def _policy(name: str, floor: int, target_in_flight: int) -> ScalingPolicy:
    return ScalingPolicy(
        api_version=API_VERSION,
        kind="ScalingPolicy",
        metadata=Metadata(name=name),
        spec=ScalingPolicySpec(
            fleets=(FleetShare(name=FLEET_NAME, target_in_flight=target_in_flight),),
            serving=Serving(min=floor),
        ),
    )
