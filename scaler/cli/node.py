"""`emberpool node`: the GPU nodes of a cluster, as its API server shows them, and the seats on them."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

from scaler.cli import answers, node_orders, show
from scaler.cli.answers import NodeAnswer, NodeTaint
from scaler.cli.failures import OK, Failed
from scaler.cli.human import NOTHING, age
from scaler.cli.kube_options import Target, cluster
from scaler.cli.options import Format, OptionalName, Output, RequiredName, Watch, examples, group
from scaler.cli.output import emit, pairs, table
from scaler.cli.show import Column, Kind, View, asked
from warmpool.seats import SeatValue

app = group(
    "Nodes of a Kubernetes cluster: the machines with GPUs, and what stands on them. `emberpool local` has none; "
    "docs/node-agent.md says how to try them without a cluster."
)


def _status(node: NodeAnswer) -> str:
    """Say whether it takes pods, as kubectl does."""
    ready = "Ready" if node.ready else "NotReady"
    return f"{ready},SchedulingDisabled" if node.cordoned else ready


def _gpus(node: NodeAnswer) -> str:
    return f"{node.gpus.allocatable}/{node.gpus.capacity}"


def _seats(node: NodeAnswer, *values: SeatValue) -> str:
    return str(sum(seat.value in values for seat in node.seats))


def _health(node: NodeAnswer) -> str:
    """Say what the leader has marked it with; nothing where it has never marked it."""
    from scaler.cluster.kube.nodes import GPU_CONDITION, GPU_TAINT  # noqa: PLC0415 - aiohttp, which help goes without

    marks = [taint.value or taint.key for taint in node.taints if taint.key == GPU_TAINT]
    if marks:
        return ",".join(marks)
    return next(
        (
            "Healthy" if each.status == "True" else each.reason or "Unhealthy"
            for each in node.conditions
            if each.type == GPU_CONDITION
        ),
        NOTHING,
    )


def _taint(taint: NodeTaint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


_STANDING: Final = {
    "Excluded": "excluded by itself",
    "Waiting": "waits for the breaker",
    "Nameless": "unknown to DRA",
}
"""How a GPU is called that is to be kept from new pods by itself."""


def _show_health(target: Target, name: str) -> None:
    """Show what the controller knows of a node's GPUs, or why that isn't known."""
    try:
        answer = asked(target).ask("/v1/nodes")
    except Failed as error:
        emit(Text(f"GPU health:\n  not known: {error}"))
        return
    marks = [item.get("mark") for item in answer.get("items") or () if item.get("name") == name]
    if marks and marks[0]:
        emit(pairs([("Excluded" if marks[0].get("excluded") else "Readmitted", _why(marks[0]))]))
    rows = [
        (*_reason(gpu, reason), _standing(item, gpu))
        for item in answer.get("items") or ()
        if item.get("name") == name
        for gpu in item.get("gpus") or ()
        for reason in gpu.get("reasons") or [{}]
    ]
    header = ["GPU", "VERDICT", "SINCE", "UNTIL", "REASON", "CLEARED BY", "MARK"]
    _list("GPU health", header, [list(row) for row in rows])
    for what, breaker in (("nodes", answer.get("breaker")), ("GPUs", answer.get("gpuBreaker"))):
        if breaker and breaker.get("tripped"):
            used = f"{breaker.get('used')} of {breaker.get('allowed')}"
            emit(Text(f"  the breaker holds {what} back: {used} exclusions were within its window"))


def _standing(node: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """Say how a GPU stands that is to be kept from new pods by itself."""
    word = (node.get("gpuMarks") or {}).get(gpu.get("uuid"))
    return _STANDING.get(str(word), NOTHING)


def _why(mark: Mapping[str, Any]) -> str:
    """Say since when a node is out, or kept in, who has ordered it, why, and until when."""
    parts = [
        f"since {mark.get('since')}",
        f"by {mark['actor']}" if mark.get("actor") else "for what is said of its GPUs",
        *([f"until {mark['until']}"] if mark.get("until") else []),
    ]
    return f"{', '.join(parts)}: {mark.get('reason') or 'no reason is known'}"


def _reason(gpu: Mapping[str, Any], reason: Mapping[str, Any]) -> tuple[str, ...]:
    told = (
        gpu.get("uuid"),
        gpu.get("verdict"),
        reason.get("since") or gpu.get("since"),
        reason.get("until"),
        reason.get("text"),
        reason.get("clears"),
    )
    return tuple(str(each or NOTHING) for each in told)


NODES: Kind[NodeAnswer] = Kind(
    noun="node",
    plural="nodes",
    read=answers.node,
    source="the API server's answer",
    namespaced=False,
    columns=(
        Column("NAME", lambda node, _: node.name),
        Column("STATUS", lambda node, _: _status(node)),
        Column("GPUS", lambda node, _: _gpus(node)),
        Column("HEALTH", lambda node, _: _health(node)),
        Column("SEATS", lambda node, _: str(len(node.seats))),
        Column("SERVING", lambda node, _: _seats(node, SeatValue.SERVING, SeatValue.PROMOTING)),
        Column("SPARE", lambda node, _: _seats(node, SeatValue.SPARE, SeatValue.LENT)),
        Column("PRODUCT", lambda node, _: node.gpus.product or NOTHING, wide=True),
        Column("TAINTS", lambda node, _: ",".join(map(_taint, node.taints)) or NOTHING, wide=True),
        Column("AGE", lambda node, now: NOTHING if not node.created_at else age(now - node.created_at)),
    ),
)


@app.command(
    "get",
    epilog=examples(
        "emberpool node get",
        "emberpool node get --context prod -o wide",
        "emberpool node get --watch",
        "emberpool node get -o json | jq '.items[] | select(.gpus.allocatable < .gpus.capacity).name'",
    ),
)
@cluster
def get(
    name: OptionalName = None,
    output: Format = Output.TABLE,
    watch: Watch = False,
    *,
    target: Target,
) -> int:
    """List the nodes that have GPUs or seats.

    GPUS is how many the device plugin offers, of how many it has found. HEALTH is what the leading controller has marked the
    node with. Seats of all namespaces are counted, or of the one that -n names.
    """
    return show.get(NODES, name, View(source=asked(target), output=output, watch=watch))


@app.command(
    "describe",
    epilog=examples("emberpool node describe gpu-a", "emberpool node describe gpu-a --context prod"),
)
@cluster
def describe(name: RequiredName, *, target: Target) -> int:
    """Show one node: its GPUs, what is said of them, its taints, its conditions, and the seats on it."""
    node, _ = show.describe(NODES, name, asked(target))
    values = Counter(seat.value for seat in node.seats)
    emit(
        pairs(
            [
                ("Name", node.name),
                ("Status", _status(node)),
                ("GPUs", f"{node.gpus.allocatable} offered of {node.gpus.capacity} found"),
                ("Product", node.gpus.product or NOTHING),
                ("Health", _health(node)),
                ("Taints", ", ".join(map(_taint, node.taints)) or NOTHING),
                ("Seats", ", ".join(f"{count} {value}" for value, count in values.items()) or NOTHING),
            ]
        )
    )
    _show_health(target, name)
    _list(
        "Conditions",
        ["TYPE", "STATUS", "REASON", "MESSAGE"],
        [
            [each.type, each.status, each.reason or NOTHING, each.message or NOTHING]
            for each in node.conditions
        ],
    )
    _list(
        "Seat list",
        ["NAMESPACE", "NAME", "FLEET", "VALUE", "SERVING"],
        [
            [each.namespace, each.name, each.fleet, each.value, ",".join(each.serving) or NOTHING]
            for each in node.seats
        ],
    )
    return OK


def _list(title: str, header: list[str], rows: list[list[str]]) -> None:
    emit(Text(f"{title}:"))
    emit(show.indented(table(header, rows)) if rows else "  none")


node_orders.register(app)
