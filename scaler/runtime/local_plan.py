"""What one machine would run, worked out before anything starts: seats, residents, commands, memory.

Everything that can be wrong with the options, the policies or the checkpoints is found here, as one clear error.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader.checkpoint import Checkpoint
from loader.errors import CheckpointError
from loader.sources.files import open_checkpoint
from scaler.cluster.local.cluster import SeatTemplate
from scaler.cluster.local.gpus import Gpu
from scaler.cluster.local.memory import Footprint, footprint
from scaler.errors import UserError
from scaler.policy.command_line import value_of
from scaler.policy.compile import PolicySet, load_policies
from scaler.policy.default import default_set
from scaler.policy.proof import ProofSource
from scaler.policy.scaling_policy import EngineType, ScalingPolicy
from scaler.policy.witnesses import lacks_witness
from scaler.runtime.local_memory import MIB, SeatRoom, check_memory, gib
from scaler.runtime.local_options import LocalOptions
from scaler.runtime.proofs import Served
from warmpool.agent.annotations import with_policy
from warmpool.seats import FleetName, PolicyName
from warmpool.tiers import Tier

_DEFAULT_LENGTH = 512
"""Tokens per sequence where nobody said: enough for a chat turn, small enough for a laptop."""

_LOOK_SECONDS = 1.0
"""Time of the memory test before an engine's start: all of an H200 goes through the first pair of patterns in it."""

_WARMUP = "The first request of an engine finds what the second one has ready. "
_WARMUP_TOKENS = 4
"""Tokens of each warm-up answer: enough decode steps to have every kernel loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """What would run.

    Attributes:
        set: fleets and policies.
        checkpoints: opened checkpoint of each policy.
        directories: its directory.
        footprints: per fleet and policy, what one resident takes.
        placements: per fleet, the GPUs of each seat slot (empty tuples on the CPU).
        on_gpus: the fleets whose seats have GPUs here; the engines of the others run on the CPU.
        rooms: per fleet, the memory of one of its seats.
    """

    set: PolicySet
    checkpoints: Mapping[PolicyName, Checkpoint]
    directories: Mapping[PolicyName, Path]
    footprints: Mapping[tuple[FleetName, PolicyName], Footprint]
    placements: Mapping[FleetName, Sequence[tuple[str, ...]]]
    on_gpus: frozenset[FleetName]
    rooms: Mapping[FleetName, SeatRoom]

    def device(self, policy: PolicyName) -> str:
        """Return what a policy's engines run on: `cuda` or `cpu`."""
        fleets = {share.fleet for share in self.set.policy_specs[policy].fleets}
        return "cuda" if fleets & self.on_gpus else "cpu"

    @property
    def served(self) -> Mapping[PolicyName, Served]:
        """What each policy's engines compute with, of those whose answers are recorded."""
        return {
            policy: Served(
                directory=directory,
                device=self.device(policy),
                dtype=value_of(self.set.policies[policy].spec.engine.args, "--dtype") or "auto",
            )
            for policy, directory in self.directories.items()
            if self.set.policies[policy].spec.engine.proof.source is ProofSource.RECORD
        }

    def seat_bytes(self, fleet: FleetName) -> int:
        """What one seat of a fleet takes while none of its residents is parked."""
        return self.rooms[fleet].bytes


def make_plan(options: LocalOptions, gpus: Sequence[Gpu]) -> LocalPlan:
    """Work out what would run. Reads policy files and checkpoint headers.

    Raises:
        UserError: something is missing, wrong or too large; the message names it and the hint its mend.
        PolicyError: the policy files have faults.
    """
    cuda = _choose_device(options, gpus)
    policies = _policy_set(options, gpus if cuda else ())
    _check_engines(policies)
    _check_witnesses(options, policies)
    directories = _match_checkpoints(options, policies)
    checkpoints = {name: _open(name, path) for name, path in directories.items()}
    on_gpus = _fleets_on_gpus(options, policies) if cuda else frozenset()
    footprints = _footprints(options, policies, checkpoints, on_gpus)
    device_bytes = min((gpu.memory_bytes for gpu in gpus), default=0) // options.seats_per_gpu
    plan = LocalPlan(
        set=policies,
        checkpoints=checkpoints,
        directories=directories,
        footprints=footprints,
        placements=_place(options, policies, on_gpus, gpus),
        on_gpus=on_gpus,
        rooms={
            name: _room(policies, name, footprints, device_bytes if name in on_gpus else None)
            for name in policies.fleets
        },
    )
    seats = {fleet: len(slots) for fleet, slots in plan.placements.items()}
    check_memory(list(plan.rooms.values()), seats, options.seat_budget)
    return plan


def _room(
    policies: PolicySet,
    fleet: FleetName,
    footprints: Mapping[tuple[FleetName, PolicyName], Footprint],
    gpu_bytes: int | None,
) -> SeatRoom:
    """Return the memory of one seat of a fleet: its GPUs', or less where the fleet says so."""
    written = policies.fleets[fleet]
    limit = written.spec.seat.memory_mib
    limits = [] if limit is None else [limit * MIB]
    if gpu_bytes is not None:
        limits.append(gpu_bytes * written.spec.seat.gpus)
    return SeatRoom(
        fleet=written,
        residents={policy: footprints[fleet, policy] for policy in policies.policies_on(fleet)},
        device_bytes=min(limits, default=None),
        on_gpus=gpu_bytes is not None,
    )


def _choose_device(options: LocalOptions, gpus: Sequence[Gpu]) -> bool:
    if options.device == "cuda" and not gpus:
        raise UserError(
            "no GPU was found", hint="`nvidia-smi` lists what the driver sees; --device cpu runs without"
        )
    return bool(gpus) and options.device != "cpu"


def _fleets_on_gpus(options: LocalOptions, policies: PolicySet) -> frozenset[FleetName]:
    """Return the fleets whose seats ask for GPUs; a policy's fleets are all of one kind, since its tokens are compared."""
    on_gpus = frozenset(name for name, fleet in policies.fleets.items() if fleet.spec.seat.gpus)
    for name, policy in policies.policy_specs.items():
        if len({share.fleet in on_gpus for share in policy.fleets}) > 1:
            raise UserError(
                f"policy {name} names fleets with GPUs and fleets without",
                hint="give all its fleets the same `seat: {gpus: N}`, or run everything with --device cpu",
            )
    if options.device == "cuda" and not on_gpus:
        raise UserError(
            "no fleet asks for GPUs", hint="write `seat: {gpus: 1}` in the fleet, or use --device cpu"
        )
    return on_gpus


def _policy_set(options: LocalOptions, gpus: Sequence[Gpu]) -> PolicySet:
    if options.policies:
        return load_policies(options.policies)
    seats = options.seats if options.seats is not None else max(1, len(gpus) * options.seats_per_gpu)
    in_flight = options.max_num_seqs or 8
    return default_set(
        list(options.checkpoints), seats=seats, target_in_flight=in_flight, gpus=1 if gpus else 0
    )


def _check_engines(policies: PolicySet) -> None:
    """Refuse engines that can't be started here: a policy that was tried with another one was not tried."""
    others = {
        name: policy.spec.engine.type
        for name, policy in policies.policies.items()
        if policy.spec.engine.type is not EngineType.REFERENCE
    }
    if others:
        wanted = ", ".join(f"{name} ({engine})" for name, engine in others.items())
        raise UserError(
            f"`emberpool local` starts the reference engine only, and these policies want another one: {wanted}",
            hint="write `engine: {type: Reference}`, or leave `engine` out; in a copy, if the file is for a cluster",
        )


def _check_witnesses(options: LocalOptions, policies: PolicySet) -> None:
    """Refuse residents that would have to agree on what they answer and never are two."""
    for name, policy in policies.policies.items():
        alone = options.seat_budget == 1 and policy.spec.engine.proof.source is ProofSource.AGREEMENT
        if alone or lacks_witness(policies, name):
            raise UserError(
                f"the residents of policy {name} are to agree on what they answer, and at rest there is one seat at most",
                hint="raise spare.min of its fleet, or leave engine.proof.source out: the answers are then computed beforehand",
            )


def _match_checkpoints(options: LocalOptions, policies: PolicySet) -> dict[PolicyName, Path]:
    """Find the checkpoint of each policy: by the policy's name, or by one of its model names."""
    matched: dict[PolicyName, Path] = {}
    for name, policy in policies.policies.items():
        names = [name, *_models(policy)]
        found = next((options.checkpoints[key] for key in names if key in options.checkpoints), None)
        if found is None:
            raise UserError(
                f"policy {name} has no checkpoint",
                hint=f"add --checkpoint {name}=DIR, a directory of .safetensors files",
            )
        matched[name] = found
    known = {key for name, policy in policies.policies.items() for key in (name, *_models(policy))}
    if unknown := sorted(set(options.checkpoints) - known):
        raise UserError(
            f"no policy is called {unknown[0]}, and none lists it as a model",
            hint=f"policies: {', '.join(sorted(policies.policies))}; write --checkpoint NAME=DIR with one of these",
        )
    return matched


def _models(policy: ScalingPolicy) -> Sequence[str]:
    return policy.spec.models or (policy.metadata.name,)


def _open(name: PolicyName, path: Path) -> Checkpoint:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        message, _, hint = str(error).partition("\n\nhint: ")
        raise UserError(
            f"the checkpoint of {name} can't be used: {message}",
            hint=hint or "`python -m loader verify DIR` lists what is wrong with a checkpoint",
        ) from error
    except OSError as error:
        raise UserError(
            f"the checkpoint of {name} can't be read: {error}", hint="name a directory of .safetensors files"
        ) from error
    if not checkpoint.config:
        raise UserError(
            f"the checkpoint of {name} has no config.json in {path}",
            hint="it tells the model's dimensions; fetch it from where the weights came",
        )
    return checkpoint


def _footprints(
    options: LocalOptions,
    policies: PolicySet,
    checkpoints: Mapping[PolicyName, Checkpoint],
    on_gpus: frozenset[FleetName],
) -> dict[tuple[FleetName, PolicyName], Footprint]:
    sizes = {}
    for name, spec in policies.policy_specs.items():
        for share in spec.fleets:
            sizes[share.fleet, name] = footprint(
                checkpoints[name],
                sequences=sequences(options, policies, name, share.fleet),
                length=length(options, policies, name),
                cuda=share.fleet in on_gpus,
            )
    return sizes


def sequences(options: LocalOptions, policies: PolicySet, policy: PolicyName, fleet: FleetName) -> int:
    """Return how many sequences an engine takes: its own argument, the option, or what the policy promises per seat."""
    given = _whole_argument(policies.policies[policy], "--max-num-seqs") or options.max_num_seqs
    share = next(share for share in policies.policy_specs[policy].fleets if share.fleet == fleet)
    return given or share.target_in_flight


def length(options: LocalOptions, policies: PolicySet, policy: PolicyName) -> int:
    """Return how many tokens one sequence may have."""
    given = _whole_argument(policies.policies[policy], "--max-model-len")
    return given or options.max_model_len or _DEFAULT_LENGTH


def _whole_argument(policy: ScalingPolicy, flag: str) -> int | None:
    value = value_of(policy.spec.engine.args, flag)
    return int(value) if value is not None and value.isdigit() else None


def _place(
    options: LocalOptions, policies: PolicySet, on_gpus: frozenset[FleetName], gpus: Sequence[Gpu]
) -> dict[FleetName, Sequence[tuple[str, ...]]]:
    """Give each seat slot its GPUs; fleets take them in turn, and a GPU holds `seats_per_gpu` seats at most."""
    free = [gpu.uuid for _ in range(options.seats_per_gpu) for gpu in gpus]
    placements: dict[FleetName, Sequence[tuple[str, ...]]] = {}
    for name, fleet in policies.fleets.items():
        wanted, per_seat = fleet.spec.max_seats, fleet.spec.seat.gpus
        if options.seat_budget is not None:
            wanted = min(wanted, options.seat_budget)
        if name not in on_gpus:
            placements[name] = [()] * wanted
            continue
        slots = [
            tuple(free[i * per_seat : (i + 1) * per_seat]) for i in range(min(wanted, len(free) // per_seat))
        ]
        free = free[len(slots) * per_seat :]
        if len(slots) < wanted:
            raise UserError(
                f"fleet {name} may have {wanted} seats of {per_seat} GPU(s), and room is left for {len(slots)}",
                hint=f"lower its maxSeats, or raise --seats-per-gpu (now {options.seats_per_gpu})",
            )
        placements[name] = slots
    return placements


# ------------------------------------------------------------------ what seats are made from


def templates(
    options: LocalOptions,
    plan: LocalPlan,
    proofs: Mapping[PolicyName, Mapping[str, Any]],
    token: str,
    node_agent: str = "",
) -> list[SeatTemplate]:
    """Make each fleet's seat template.

    Args:
        options: what was asked for.
        plan: what would run.
        proofs: per policy, the recorded prompts and tokens that its residents must reproduce; none where they agree on them.
        token: bearer token that agents will want.
        node_agent: where agents ask who holds the GPUs' memory; empty where they ask nobody.
    """
    environment = {"EMBERPOOL_AGENT_TOKEN": token, **options.environment}
    return [
        SeatTemplate(
            fleet=fleet,
            residents=[
                _resident(options, plan, fleet, policy, proofs.get(policy, {}))
                for policy in plan.set.policies_on(fleet)
            ],
            placements=slots,
            environment=environment,
            settings={
                **plan.rooms[fleet].settings(),
                **({"gpuHealth": "Observe"} if fleet in plan.set.health_observed else {}),
                "nodeAgent": node_agent,
            },
        )
        for fleet, slots in plan.placements.items()
    ]


def _resident(
    options: LocalOptions, plan: LocalPlan, fleet: FleetName, policy: PolicyName, proof: Mapping[str, Any]
) -> dict[str, Any]:
    written = plan.set.policies[policy]
    size = plan.footprints[fleet, policy]
    told = written.spec.engine.proof.model_dump(mode="json", by_alias=True, exclude_none=True)
    activation = written.spec.engine.activation_mib
    engine = _command(options, plan, fleet, policy)
    return {
        "policy": policy,
        "model": _models(written)[0],
        "type": "Reference",
        "command": [*_pre_flight(options, plan, fleet, size), *engine] if fleet in plan.on_gpus else engine,
        "environment": {},
        "proof": with_policy(proof, told),
        "graphCapture": str(written.spec.engine.graph_capture),
        "warmup": _warmup(length(options, plan.set, policy)) | written.spec.engine.warmup.told(),
        "memoryMiB": (size.weights_bytes + size.overhead_bytes) // MIB,
        "kvMiB": size.kv_bytes // MIB,
        **({} if activation is None else {"activationMiB": activation}),
    }


def _warmup(length: int) -> dict[str, Any]:
    """Return what a resident is warmed up with: a short prompt, and one of half of its length even if a token is a byte.

    More is sent only where its policy says so: the reference engine computes prompts and batches of all sizes before it is ready.
    """
    long = (_WARMUP * (length // len(_WARMUP) + 1))[: length // 2]
    return {"prompts": [long[:8], long], "maxTokens": _WARMUP_TOKENS}


def _command(options: LocalOptions, plan: LocalPlan, fleet: FleetName, policy: PolicyName) -> list[str]:
    written = plan.set.policies[policy]
    arguments = [str(argument) for argument in written.spec.engine.args]
    command = [sys.executable, "-m", "warmpool.reference", "serve"]
    for model in _models(written):
        command += ["--model", model]
    command += ["--checkpoint", str(plan.directories[policy])]
    command += ["--host", "{host}", "--port", "{port}", "--control-port", "{controlPort}"]
    command += ["--guard", "closed", "--die-with-parent"]
    command += ["--device", plan.device(policy)]
    if value_of(arguments, "--max-num-seqs") is None:
        command += ["--max-num-seqs", str(sequences(options, plan.set, policy, fleet))]
    if value_of(arguments, "--max-model-len") is None:
        command += ["--max-model-len", str(length(options, plan.set, policy))]
    return command + arguments


def _pre_flight(options: LocalOptions, plan: LocalPlan, fleet: FleetName, size: Footprint) -> list[str]:
    """Return what looks at the GPU in an engine's place and then becomes it; where others may come, it tests what the engine may take."""
    needed = str((size.weights_bytes + size.overhead_bytes + size.kv_bytes) // MIB)
    shared = options.seats_per_gpu > 1 or len(plan.set.policies_on(fleet)) > 1
    look = [sys.executable, "-m", "warmpool.nodehealth.preflight", "--seconds", f"{_LOOK_SECONDS:g}"]
    return [*look, "--needed-mib", needed, *(["--most-mib", needed] if shared else []), "--"]


def describe(plan: LocalPlan) -> str:
    """Say in words what would run: for --dry-run and the start-up message."""
    lines = []
    for fleet, slots in plan.placements.items():
        found = {gpu for slot in slots for gpu in slot}
        where = f"{len(found)} GPU(s)" if found else "CPU"
        lines.append(
            f"fleet {fleet}: up to {len(slots)} seats on {where}, {gib(plan.seat_bytes(fleet))} each"
        )
        for policy in plan.set.policies_on(fleet):
            size = plan.footprints[fleet, policy]
            parked = ", parked until it is wanted" if plan.rooms[fleet].tiers[policy] is Tier.PARKED else ""
            lines.append(
                f"  resident {policy}: {gib(size.weights_bytes)} weights, {gib(size.kv_bytes)} KV memory while it"
                f" serves, from {plan.directories[policy]}{parked}"
            )
    return "\n".join(lines)
