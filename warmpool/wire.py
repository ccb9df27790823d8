"""Residents, claims and seats as JSON: what agents report, annotations hold, and the command line prints.

One spelling everywhere: lowerCamelCase keys, times as Unix seconds, states in PascalCase. Unknown keys are ignored, so
that an older reader understands a newer writer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from warmpool.engines.capabilities import Capabilities, Capability, Change, Finding, Ground, Verification
from warmpool.engines.capabilities import Verdict as ChangeVerdict
from warmpool.errors import BadOrder
from warmpool.expectations import Answer, Ownership, Recording, Statement
from warmpool.seats import (
    UNKNOWN,
    Claim,
    Crash,
    FleetName,
    GpuWord,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
    seat_value,
)
from warmpool.states import Depth, ResidentState
from warmpool.tiers import Budget, GpuBudget
from warmpool.timeline import CacheUse, PassedOver, StartFacts, WarmUp, WeightLoad

Json = Mapping[str, Any]

_CAPABILITIES = frozenset(map(str, Capability))
_GROUNDS = frozenset(map(str, Ground))
_CHANGES = frozenset(map(str, Change))
_DEPTHS = frozenset(map(str, Depth))
_VERDICTS = frozenset(map(str, ChangeVerdict))
_GPU_WORDS = frozenset(map(str, Verdict))


def resident_to_json(resident: Resident) -> dict[str, Any]:
    """Render one resident."""
    return {
        "policy": resident.policy,
        "state": str(resident.state),
        "since": resident.since,
        "address": resident.address,
        "provenAt": resident.proven_at,
        "kvReleased": resident.kv_released,
        "inFlight": resident.in_flight,
        "restarts": resident.restarts,
        "failure": resident.failure,
        "refused": resident.refused,
        "waiting": resident.waiting,
        "pid": resident.pid,
        "memoryBytes": resident.memory_bytes,
        "parkedBytes": resident.parked_bytes,
        "wakeSeconds": {str(depth): seconds for depth, seconds in resident.wake_seconds.items()},
        "phases": dict(resident.phases),
        "start": None if resident.start is None else start_to_json(resident.start),
        "capabilities": None
        if resident.capabilities is None
        else capabilities_to_json(resident.capabilities),
        "verification": None
        if resident.verification is None
        else _verification_to_json(resident.verification),
        "checkpoint": resident.checkpoint,
        "stage": resident.stage,
        "stageReason": resident.stage_reason,
    }


def resident_from_json(data: Json) -> Resident:
    """Read one resident.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Resident(
            policy=_policy(data["policy"]),
            state=ResidentState(_text(data["state"])),
            since=_number(data["since"]),
            address=_text(data.get("address", "")),
            proven_at=_optional(_number, data.get("provenAt")),
            kv_released=_flag(data.get("kvReleased", False)),
            in_flight=_whole(data.get("inFlight", 0)),
            restarts=_whole(data.get("restarts", 0)),
            failure=_text(data.get("failure", "")),
            refused=_flag(data.get("refused", False)),
            waiting=_text(data.get("waiting", "")),
            pid=_optional(_whole, data.get("pid")),
            memory_bytes=_optional(_whole, data.get("memoryBytes")),
            parked_bytes=_optional(_whole, data.get("parkedBytes")),
            wake_seconds={
                Depth(depth): _number(seconds)
                for depth, seconds in data.get("wakeSeconds", {}).items()
                if depth in _DEPTHS
            },
            phases={_text(name): _number(seconds) for name, seconds in data.get("phases", {}).items()},
            start=_optional(start_from_json, data.get("start")),
            capabilities=_optional(capabilities_from_json, data.get("capabilities")),
            verification=_optional(_verification_from_json, data.get("verification")),
            checkpoint=_text(data.get("checkpoint", "")),
            stage=_text(data.get("stage", "")),
            stage_reason=_text(data.get("stageReason", "")),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a resident: {error!r}") from error


def start_to_json(start: StartFacts) -> dict[str, Any]:
    """Render what is known of a start beside its phases."""
    weights, cache = start.weights, start.compile_cache
    return {
        "at": start.at,
        "told": start.told,
        "weights": None
        if weights is None
        else {
            "tier": weights.tier,
            "bytes": weights.nbytes,
            "seconds": weights.seconds,
            "passedOver": [passed_over_to_json(each) for each in weights.passed_over],
        },
        "compileCache": None if cache is None else {"hits": cache.hits, "misses": cache.misses},
        "firstRequestSeconds": start.first_request_seconds,
        "warmUp": None if start.warm_up is None else warm_up_to_json(start.warm_up),
    }


def start_from_json(data: Json) -> StartFacts:
    """Read what is known of a start.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return StartFacts(
            at=_number(data["at"]),
            told=_flag(data.get("told", False)),
            weights=_optional(_weight_load, data.get("weights")),
            compile_cache=_optional(_cache_use, data.get("compileCache")),
            first_request_seconds=_optional(_number, data.get("firstRequestSeconds")),
            warm_up=_optional(_warm_up, data.get("warmUp")),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a start: {error!r}") from error


def _weight_load(data: Json) -> WeightLoad:
    return WeightLoad(
        tier=_text(data.get("tier", "")),
        nbytes=_whole(data.get("bytes", 0)),
        seconds=_number(data["seconds"]),
        passed_over=tuple(_passed_over(each) for each in _items(data.get("passedOver", ()))),
    )


def passed_over_to_json(passed: PassedOver) -> dict[str, str]:
    """Render a tier that was tried in vain."""
    return {"tier": passed.tier, "code": passed.code, "reason": passed.reason}


def _passed_over(data: Json) -> PassedOver:
    return PassedOver(
        tier=_text(data["tier"]), code=_text(data["code"]), reason=_text(data.get("reason", ""))
    )


def warm_up_to_json(done: WarmUp) -> dict[str, Any]:
    """Render what an engine computed before its first proof."""
    return {
        "promptTokens": list(done.prompt_tokens),
        "batchSizes": list(done.batch_sizes),
        "maxTokens": done.max_tokens,
        "leftOut": done.left_out,
    }


def _warm_up(data: Json) -> WarmUp:
    return WarmUp(
        prompt_tokens=tuple(_whole(each) for each in _items(data.get("promptTokens", ()))),
        batch_sizes=tuple(_whole(each) for each in _items(data.get("batchSizes", ()))),
        max_tokens=_whole(data.get("maxTokens", 0)),
        left_out=_whole(data.get("leftOut", 0)),
    )


def _cache_use(data: Json) -> CacheUse:
    return CacheUse(hits=_whole(data["hits"]), misses=_whole(data["misses"]))


def capabilities_to_json(found: Capabilities) -> dict[str, Any]:
    """Render what an engine can do."""
    return {
        "kind": found.kind,
        "version": found.version,
        "findings": {
            str(capability): {"ground": str(finding.ground), "reason": finding.reason}
            for capability, finding in found.findings.items()
        },
    }


def capabilities_from_json(data: Json) -> Capabilities:
    """Read what an engine can do; capabilities and grounds of a newer agent are left out.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return _capabilities(data)
    except _MALFORMED as error:
        raise BadOrder(f"not what an engine can do: {error!r}") from error


def _capabilities(data: Json) -> Capabilities:
    return Capabilities(
        kind=_text(data["kind"]),
        version=_text(data.get("version", "")),
        findings={
            Capability(name): Finding(
                ground=Ground(_text(finding["ground"])), reason=_text(finding.get("reason", ""))
            )
            for name, finding in data.get("findings", {}).items()
            if name in _CAPABILITIES and _text(finding["ground"]) in _GROUNDS
        },
    )


def _verification_to_json(verification: Verification) -> dict[str, Any]:
    return {
        "change": str(verification.change),
        "verdict": str(verification.verdict),
        "evidence": list(verification.evidence),
    }


def _verification_from_json(data: Json) -> Verification | None:
    """Read what an engine said after a change; None for a change or a verdict of a newer agent."""
    change, verdict = _text(data["change"]), _text(data["verdict"])
    if change not in _CHANGES or verdict not in _VERDICTS:
        return None
    return Verification(
        change=Change(change),
        verdict=ChangeVerdict(verdict),
        evidence=tuple(_text(line) for line in _items(data.get("evidence", ()))),
    )


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """Render a claim."""
    return {
        "id": claim.id,
        "policy": claim.policy,
        "operation": str(claim.operation),
        "holder": claim.holder,
        "epoch": claim.epoch,
        "since": claim.since,
        "deadline": claim.deadline,
        "leaving": claim.leaving,
        "displace": None if claim.displace is None else list(claim.displace),
    }


def claim_from_json(data: Json) -> Claim:
    """Read a claim.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Claim(
            id=_text(data["id"]),
            policy=_policy(data["policy"]),
            operation=Operation(_text(data["operation"])),
            holder=_text(data["holder"]),
            epoch=_whole(data["epoch"]),
            since=_number(data["since"]),
            deadline=_number(data["deadline"]),
            leaving=_optional(_policy, data.get("leaving")),
            displace=_optional(
                lambda listed: tuple(_policy(policy) for policy in _items(listed)), data.get("displace")
            ),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a claim: {error!r}") from error


def seat_to_json(seat: Seat) -> dict[str, Any]:
    """Render a seat with its derived value."""
    return {
        "name": seat.name,
        "uid": seat.uid,
        "version": seat.version,
        "fleet": seat.fleet,
        "node": seat.node,
        "gpus": list(seat.gpus),
        "value": str(seat_value(seat)),
        "residents": [resident_to_json(resident) for resident in seat.residents],
        "serving": sorted(seat.serving),
        "claim": None if seat.claim is None else claim_to_json(seat.claim),
        "verdict": str(seat.verdict),
        "gpuHealth": [gpu_word_to_json(word) for word in seat.gpu_words],
        "healthObserved": seat.health_observed,
        "admitted": seat.admitted,
        "ready": seat.ready,
        "reachable": seat.reachable,
        "terminating": seat.terminating,
        "leavesBy": seat.leaves_by,
        "nodeLeaving": seat.node_leaving,
        "fenced": seat.fenced,
        "lent": seat.lent,
        "drained": seat.drained,
        "ailing": seat.ailing,
        "crash": None if seat.crash is None else _crash_to_json(seat.crash),
        "createdAt": seat.created_at,
        "scheduledAt": seat.scheduled_at,
        "runningAt": seat.running_at,
        "template": seat.template,
        "agent": seat.agent,
        "memory": None if seat.memory is None else budget_to_json(seat.memory),
    }


def _crash_to_json(crash: Crash) -> dict[str, Any]:
    return {
        "container": crash.container,
        "reason": crash.reason,
        "restarts": crash.restarts,
        "how": crash.how,
        "refused": crash.refused,
    }


def _crash_from_json(data: Json) -> Crash:
    return Crash(
        container=_text(data["container"]),
        reason=_text(data["reason"]),
        restarts=_whole(data.get("restarts", 0)),
        how=_text(data.get("how", "")),
        refused=_flag(data.get("refused", False)),
    )


def seat_from_json(data: Json) -> Seat:
    """Read a seat; the derived `value` is ignored.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Seat(
            name=SeatName(_text(data["name"])),
            uid=_text(data["uid"]),
            version=_text(data["version"]),
            fleet=FleetName(_text(data["fleet"])),
            node=_text(data.get("node", "localhost")),
            gpus=tuple(_text(gpu) for gpu in _items(data.get("gpus", ()))),
            residents=tuple(resident_from_json(resident) for resident in _items(data.get("residents", ()))),
            serving=frozenset(_policy(policy) for policy in _items(data.get("serving", ()))),
            claim=_optional(claim_from_json, data.get("claim")),
            verdict=Verdict(_text(data.get("verdict", "Ok"))),
            gpu_words=tuple(gpu_word_from_json(word) for word in _items(data.get("gpuHealth", ()))),
            health_observed=_flag(data.get("healthObserved", False)),
            admitted=_flag(data.get("admitted", False)),
            ready=_flag(data.get("ready", False)),
            reachable=_flag(data.get("reachable", True)),
            terminating=_flag(data.get("terminating", False)),
            leaves_by=_optional(_number, data.get("leavesBy")),
            node_leaving=_text(data.get("nodeLeaving", "")),
            fenced=_flag(data.get("fenced", False)),
            lent=_flag(data.get("lent", False)),
            drained=_flag(data.get("drained", False)),
            ailing=_text(data.get("ailing", "")),
            crash=_optional(_crash_from_json, data.get("crash")),
            created_at=_number(data.get("createdAt", 0.0)),
            scheduled_at=_optional(_number, data.get("scheduledAt")),
            running_at=_optional(_number, data.get("runningAt")),
            template=_text(data.get("template", "")),
            agent=_text(data.get("agent", "")),
            memory=_optional(budget_from_json, data.get("memory")),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a seat: {error!r}") from error


def gpu_word_to_json(word: GpuWord) -> dict[str, Any]:
    """Render what is said of a GPU."""
    return {"uuid": word.uuid, "verdict": word.word, "reason": word.reason, "stops": word.stops}


def gpu_word_from_json(data: Json) -> GpuWord:
    """Read what is said of a GPU; a verdict of a newer writer is Unknown.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        word = _text(data["verdict"])
        return GpuWord(
            uuid=_text(data["uuid"]),
            word=word if word in _GPU_WORDS else UNKNOWN,
            reason=_text(data.get("reason", "")),
            stops=_flag(data.get("stops", False)),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a word on a GPU: {error!r}") from error


def budget_to_json(budget: Budget) -> dict[str, Any]:
    """Render the budget of a seat's memory, with what is left of it."""
    return {
        "deviceBytes": budget.device_bytes,
        "pausedBytes": budget.paused_bytes,
        "largestComputeBytes": budget.largest_compute_bytes,
        "reserveBytes": budget.reserve_bytes,
        "freeBytes": budget.free_bytes,
        "hostBytes": budget.host_bytes,
        "parkedBytes": budget.parked_bytes,
        "verified": budget.verified,
        "stageBytes": budget.stage_bytes,
        "stageReason": budget.stage_reason,
        "gpus": [
            {
                "uuid": each.gpu,
                "deviceBytes": each.device_bytes,
                "pausedBytes": each.paused_bytes,
                "largestComputeBytes": each.largest_compute_bytes,
                "reserveBytes": each.reserve_bytes,
                "stageBytes": each.stage_bytes,
                "freeBytes": each.free_bytes,
            }
            for each in budget.gpus
        ],
    }


def budget_from_json(data: Json) -> Budget:
    """Read a budget; the derived `freeBytes` is ignored.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Budget(
            device_bytes=_optional(_whole, data["deviceBytes"]),
            paused_bytes=_whole(data["pausedBytes"]),
            largest_compute_bytes=_whole(data["largestComputeBytes"]),
            reserve_bytes=_whole(data["reserveBytes"]),
            host_bytes=_whole(data.get("hostBytes", 0)),
            parked_bytes=_whole(data.get("parkedBytes", 0)),
            verified=_flag(data.get("verified", False)),
            stage_bytes=_whole(data.get("stageBytes", 0)),
            stage_reason=_text(data.get("stageReason", "")),
            gpus=tuple(_gpu_budget(each) for each in _items(data.get("gpus", ()))),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a budget: {error!r}") from error


def _gpu_budget(data: Json) -> GpuBudget:
    return GpuBudget(
        gpu=_text(data["uuid"]),
        device_bytes=_optional(_whole, data["deviceBytes"]),
        paused_bytes=_whole(data["pausedBytes"]),
        largest_compute_bytes=_whole(data["largestComputeBytes"]),
        reserve_bytes=_whole(data["reserveBytes"]),
        stage_bytes=_whole(data.get("stageBytes", 0)),
    )


def statement_to_json(statement: Statement) -> dict[str, Any]:
    """Render what a resident answers."""
    return {
        "uid": statement.uid,
        "ownership": ownership_to_json(statement.ownership),
        "answers": [answer_to_json(answer) for answer in statement.answers],
    }


def statement_from_json(data: Json) -> Statement:
    """Read what a resident answers.

    Raises:
        BadOrder: a key is missing or has the wrong type.
    """
    try:
        return Statement(
            uid=_text(data["uid"]),
            ownership=_ownership_from_json(data.get("ownership", {})),
            answers=tuple(_answer_from_json(answer) for answer in _items(data["answers"])),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a statement: {error!r}") from error


def recording_to_json(recording: Recording) -> dict[str, Any]:
    """Render an expectation that residents have made."""
    return {
        "ownership": ownership_to_json(recording.ownership),
        "answers": [answer_to_json(answer) for answer in recording.answers],
        "witnesses": sorted(recording.witnesses),
    }


def recording_from_json(data: Json) -> Recording:
    """Read an expectation that residents have made.

    Raises:
        BadOrder: a key is missing or has the wrong type, or it expects nothing.
    """
    try:
        recording = Recording(
            ownership=_ownership_from_json(data.get("ownership", {})),
            answers=tuple(_answer_from_json(answer) for answer in _items(data["answers"])),
            witnesses=frozenset(_text(uid) for uid in _items(data["witnesses"])),
        )
    except _MALFORMED as error:
        raise BadOrder(f"not a recording: {error!r}") from error
    if not recording.answers or not all(answer.tokens for answer in recording.answers):
        raise BadOrder("not a recording: it takes at least one answer, and each at least one token")
    return recording


def ownership_to_json(ownership: Ownership) -> dict[str, Any]:
    """Render what an engine runs with."""
    return {
        "weightsDigest": ownership.weights_digest,
        "engineVersion": ownership.engine_version,
        "dtype": ownership.dtype,
        "tensorParallelSize": ownership.tensor_parallel_size,
    }


def _ownership_from_json(data: Json) -> Ownership:
    return Ownership(
        weights_digest=_text(data.get("weightsDigest", "")),
        engine_version=_text(data.get("engineVersion", "")),
        dtype=_text(data.get("dtype", "")),
        tensor_parallel_size=_whole(data.get("tensorParallelSize", 0)),
    )


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """Render what an engine answers."""
    return {"prompt": answer.prompt, "tokens": list(answer.tokens), "logprobs": list(answer.logprobs)}


def _answer_from_json(data: Json) -> Answer:
    return Answer(
        prompt=_text(data["prompt"]),
        tokens=tuple(_whole(token) for token in _items(data["tokens"])),
        logprobs=tuple(_number(logprob) for logprob in _items(data.get("logprobs", ()))),
    )


# Types are checked, not converted: "false" is no flag and None no name, and a deadline that is NaN would never pass.

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)

_T = TypeVar("_T")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return str(value)


def _policy(value: object) -> PolicyName:
    return PolicyName(_text(value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("a number is out of range") from error
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _whole(value: object) -> int:
    number = _number(value)
    if not number.is_integer():
        raise ValueError(f"{value!r} is no whole number")
    return value if isinstance(value, int) else int(number)


def _items(value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return value


def _optional(read: Callable[[Any], _T], value: object) -> _T | None:
    return None if value is None else read(value)
