"""Answers of the law to a load as text and as plain data: its terms, the one that rules, who serves where, and why."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.text import Text

from scaler.cli.human import NOTHING, listed, number, plural
from scaler.cli.output import pairs, table
from scaler.cli.show import indented
from scaler.core.explain import explain
from scaler.core.model import FleetDecision, PolicyDecision, PolicySpec, Reason, ReasonCode
from scaler.core.replay import decision_to_json
from scaler.policy.compile import PolicySet
from scaler.policy.document import dotted
from scaler.policy.whatif import Answer, GivenLoad, Question, Worked, fleet_says, policy_says, says
from warmpool.seats import FleetName, PolicyName

Part = TypeVar("Part", PolicyDecision, FleetDecision)


def changing(answers: Iterable[Answer]) -> Iterator[Answer]:
    """Keep the answers that say something new."""
    last: object = None
    for answer in answers:
        if says(answer) != last:
            yield answer
        last = says(answer)


def _codes(reasons: Sequence[Reason]) -> list[str]:
    return [str(reason.code) for reason in reasons]


# ------------------------------------------------------------------ as text


def as_text(policies: PolicySet, question: Question, answers: Sequence[Answer]) -> Text:
    """Lay out the answers: the first and the last one in full, and a table of what happens between."""
    names = [name for name in policies.policy_specs if name in question.loads]
    fleets = [f for f in policies.fleet_specs if any(f in _fleets_of(policies, name) for name in names)]
    first, last = answers[0], answers[-1]
    blocks = [_assumptions(question, {fleet: first.seats[fleet] for fleet in fleets}), *_unbuilt(policies)]
    for answer in [first] if first is last else [first, last]:
        parts = [_policy_text(policies.policy_specs[name], answer) for name in names]
        parts += [_fleet_text(policies, fleet, answer) for fleet in fleets]
        blocks.append(Text("\n").join([Text(f"{_moment(answer)}:"), *map(indented, parts)]))
    head = Text("Whenever an answer changes:\n")
    blocks += [head.append_text(indented(_policy_table(answers))), indented(_fleet_table(answers))]
    if question.seconds > last.seconds:
        blocks.append(Text(f"Until {_seconds(question.seconds)} nothing changes any more."))
    return Text("\n\n").join(blocks)


def _moment(answer: Answer) -> str:
    return "At first" if answer.seconds == 0.0 else f"After {_seconds(answer.seconds)}"


def _seconds(value: float) -> str:
    return f"{number(value)} s"


def _fleets_of(policies: PolicySet, name: PolicyName) -> list[FleetName]:
    return [share.fleet for share in policies.policy_specs[name].fleets]


def _unbuilt(policies: PolicySet) -> list[Text]:
    """Say what the answer can't be trusted for; nothing where all is acted on."""
    lines = [
        Text(f"{kind} {name}: {dotted(found.path)} {found.message}")
        for kind, name, found in policies.not_acted_on()
    ]
    return [Text("\n").join([Text("Not acted on:"), *map(indented, lines)])] if lines else []


def _assumptions(question: Question, seats: Mapping[FleetName, int]) -> Text:
    up = listed([f"{name} {count}" for name, count in seats.items()])
    if not seats.keys() <= question.seats.keys():
        up += " (as many as there are at rest; --seats says otherwise)"
    return pairs(
        [
            ("Load", "; ".join(_given(name, load) for name, load in question.loads.items())),
            ("Held for", _seconds(question.seconds)),
            ("Seats up", up),
            ("Assumed", "nobody asked before; promotions and drains take no time; no seat is started"),
        ]
    )


def _given(name: PolicyName, load: GivenLoad) -> str:
    """Say what load was given."""
    queued = f"{number(load.queued)} queued (the oldest for {_seconds(load.oldest_wait)})"
    parts = [f"{name} {number(load.in_flight)} in flight", queued]
    if load.backlog is not None:
        age = f" (the oldest for {_seconds(load.backlog_age)})" if load.backlog_age else ""
        parts.append(f"{number(load.backlog)} in work queues{age}")
    return ", ".join([*parts, f"{_seconds(load.service_seconds)} a request"])


def _policy_text(spec: PolicySpec, answer: Answer) -> Text:
    policy, found = answer.decision.policies[spec.name], answer.worked[spec.name]
    demand = "unknown" if policy.demand is None else plural(round(policy.demand), "request")
    lines = pairs(
        [
            ("Demand", demand),
            *_term_lines(spec, found, policy.reasons),
            ("Mode", str(policy.mode)),
            ("Needed", f"capacity for {number(policy.needed)}, serving have {number(policy.capacity)}"),
            ("Wanted", _counts(policy.wanted)),
            ("Seats give", _counts(policy.serving)),
        ]
    )
    return Text("\n").join([Text(f"Policy {spec.name}:"), indented(lines), *_why(policy.reasons, answer)])


def _term_lines(spec: PolicySpec, worked: Worked, reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    rules, found = _ruling(reasons), worked.terms
    at_risk = f"{number(found.deadline)}, at risk" if found.at_risk else f"{NOTHING}, not at risk"
    if found.at_risk and math.isfinite(found.predicted_wait):
        at_risk += f" ({_seconds(found.predicted_wait)} more predicted)"
    rows = [
        (f"Mean over {_seconds(spec.burst.stable_window)}", number(found.mean), "stable"),
        (f"Peak over {_seconds(spec.burst.window)}", number(found.peak), "burst"),
        (f"Drain in {_seconds(spec.queue_drain)}", number(found.drain) if found.drain else NOTHING, "drain"),
        *([("With work queues", _backlog(spec, worked), "backlog")] if found.backlog else []),
        (f"First token in {_seconds(spec.ttft_objective)}", at_risk, "deadline"),
    ]
    lines = [(name, f"{value}   ← rules" if term == rules else value) for name, value, term in rows]
    return [*lines, ("Ruled by", rules)] if rules in {"floor", "max"} else lines


def _backlog(spec: PolicySpec, worked: Worked) -> str:
    """Say what the drain of queue and work queues takes, and what that is made of, as `scaler.core.need` works it out."""
    demand, takes = worked.demand, number(worked.terms.backlog)
    waiting = demand.queued + demand.backlog
    if not worked.rate:
        return f"{takes} for {number(waiting)} waiting: one seat at first, then twice what serves, until it is known how long one takes"
    finished = f"1 + {worked.rate:.3g} per second and slot × {_seconds(spec.queue_drain)}"
    return f"{takes} = {number(demand.busy)} in flight + {number(waiting)} waiting / ({finished})"


def _ruling(reasons: Sequence[Reason]) -> str:
    """Name the term that gave the answer; the first reason is the ruling one."""
    match reasons[0].code if reasons else None:
        case ReasonCode.CONCURRENCY:
            return str(reasons[0].facts["window"])
        case ReasonCode.QUEUE_DRAIN:
            return "drain"
        case ReasonCode.BACKLOG:
            return "backlog"
        case ReasonCode.DEADLINE_AT_RISK:
            return "deadline"
        case ReasonCode.MAX:
            return "max"
        case _:
            return "floor"


def _fleet_text(policies: PolicySet, name: FleetName, answer: Answer) -> Text:
    fleet = answer.decision.fleets[name]
    users = [
        f"{policy} {answer.decision.policies[policy].wanted.get(name, 0)}"
        for policy in policies.policies_on(name)
    ]
    kept = f" - {fleet.kept} that serve only out of caution" if fleet.kept else ""
    parts = f"{fleet.serving} to serve ({listed(users)}) + {fleet.spare} spare{kept} + {fleet.held} held"
    asked = fleet.serving + fleet.spare - fleet.kept + fleet.held
    head = f"Fleet {name}: {parts} = {asked}; total {plural(fleet.total, 'seat')}"
    return Text("\n").join([Text(head), *_why(fleet.reasons, answer)])


def _why(reasons: Sequence[Reason], answer: Answer) -> list[Text]:
    return [Text(f"  - {explain(reason, answer.decision.at)} [{reason.code}]") for reason in reasons]


def _counts(counts: Mapping[FleetName, int]) -> str:
    return listed([f"{count} on {fleet}" for fleet, count in counts.items()])


def _policy_table(answers: Sequence[Answer]) -> Text:
    rows = [
        [
            _seconds(answer.seconds),
            policy.policy,
            str(policy.mode),
            number(policy.demand),
            number(policy.needed),
            number(policy.capacity),
            _short(policy.serving),
            _short(policy.wanted),
            ",".join(_codes(policy.reasons)),
        ]
        for answer, policy in _rows(answers, lambda a: list(a.decision.policies.values()), policy_says)
    ]
    header = ["TIME", "POLICY", "MODE", "DEMAND", "NEEDED", "CAPACITY", "SERVING", "WANTED", "WHY"]
    return table(header, rows)


def _fleet_table(answers: Sequence[Answer]) -> Text:
    rows = [
        [
            _seconds(answer.seconds),
            fleet.fleet,
            str(fleet.total),
            str(fleet.serving),
            str(fleet.spare),
            str(answer.seats[fleet.fleet]),
            ",".join(_codes(fleet.reasons)) or NOTHING,
        ]
        for answer, fleet in _rows(answers, lambda a: list(a.decision.fleets.values()), fleet_says)
    ]
    return table(["TIME", "FLEET", "TOTAL", "SERVING", "SPARE", "UP", "WHY"], rows)


def _rows(
    answers: Sequence[Answer], parts: Callable[[Answer], Sequence[Part]], shape: Callable[[Part], object]
) -> Iterator[tuple[Answer, Part]]:
    """Yield the parts of answers that say something new."""
    last: dict[int, object] = {}
    for answer in answers:
        for index, part in enumerate(parts(answer)):
            if last.get(index) != shape(part):
                last[index] = shape(part)
                yield answer, part


def _short(counts: Mapping[FleetName, int]) -> str:
    return ",".join(f"{fleet}={count}" for fleet, count in counts.items()) or NOTHING


# ------------------------------------------------------------------ as data


def as_tree(policies: PolicySet, question: Question, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the answers as plain data, with the reasons' sentences."""
    return {
        "notActedOn": [
            {"kind": kind, "name": name, "path": dotted(found.path), "message": found.message}
            for kind, name, found in policies.not_acted_on()
        ],
        "at": question.at.isoformat(),
        "heldSeconds": question.seconds,
        "loads": {
            name: {
                "inFlight": load.in_flight,
                "queued": load.queued,
                "oldestWaitSeconds": load.oldest_wait,
                "backlog": load.backlog,
                "backlogAgeSeconds": None if load.backlog is None else load.backlog_age,
                "serviceSeconds": load.service_seconds,
            }
            for name, load in question.loads.items()
        },
        "answers": [_as_item(answer) for answer in answers],
    }


def _as_item(answer: Answer) -> dict[str, Any]:
    decision = decision_to_json(answer.decision)
    for name, policy in answer.decision.policies.items():
        worked = answer.worked[name]
        found = worked.terms
        decision["policies"][name] |= {
            "terms": {
                "mean": found.mean,
                "peak": found.peak,
                "drain": found.drain,
                "backlog": found.backlog,
                "deadline": found.deadline,
                "atRisk": found.at_risk,
                "predictedWaitSeconds": found.predicted_wait if math.isfinite(found.predicted_wait) else None,
                "finishedPerSecondAndSlot": worked.rate or None,
            },
            "ruledBy": _ruling(policy.reasons),
        }
    return {
        "seconds": answer.seconds,
        "seats": dict(answer.seats),
        "policies": decision["policies"],
        "fleets": decision["fleets"],
    }
