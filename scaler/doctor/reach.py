"""Who sends requests to seats: Services and InferencePools that reach residents which don't serve. PURE.

A paused engine would hold a request silently. Its guard refuses it, but a Service that selects all seats still sends most
requests where nobody serves.
"""

from collections.abc import Iterator, Mapping

from scaler.cluster.kube.reach import may_select
from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Object, at, mapping, mappings, texts, whole
from scaler.doctor.picture import Part, Picture, Template
from warmpool.seats import SERVING_LABEL_PREFIX


def check(picture: Picture) -> Iterator[Finding]:
    """Yield the Services and pools that reach paused residents."""
    for fleet in picture.fleets:
        for template in fleet.templates:
            for service in picture.all(Part.SERVICES):
                if service.namespace == fleet.namespace:
                    selector = texts(service.body, "spec", "selector")
                    yield from _reached(service, selector, _service_ports(service, template), template)
            for pool in picture.all(Part.POOLS):
                if pool.namespace == fleet.namespace:
                    yield from _reached(pool, _pool_selector(pool), _pool_ports(pool), template)


def _service_ports(service: Object, template: Template) -> Iterator[tuple[str, int]]:
    for index, port in mappings(service.body, "spec", "ports"):
        target = port.get("targetPort", port.get("port"))
        number = template.named_port(target) if isinstance(target, str) else target
        if isinstance(number, int):
            yield f"spec.ports[{index}]", number


def _pool_selector(pool: Object) -> Mapping[str, str]:
    """Return what a pool selects: in `matchLabels` since v1, and by itself before."""
    written = mapping(pool.body, "spec", "selector")
    return texts(written, "matchLabels") if "matchLabels" in written else texts(written)


def _pool_ports(pool: Object) -> Iterator[tuple[str, int]]:
    before = whole(pool.body, "spec", "targetPortNumber")
    if before is not None:
        yield "spec.targetPortNumber", before
    for index, port in mappings(pool.body, "spec", "targetPorts"):
        if (number := whole(port, "number")) is not None:
            yield f"spec.targetPorts[{index}]", number


def _reached(
    sender: Object,
    selector: Mapping[str, str],
    ports: Iterator[tuple[str, int]],
    template: Template,
) -> Iterator[Finding]:
    if not selector or not may_select(selector, template.labels, frozenset(template.ports.values())):
        return
    for path, number in ports:
        policy = template.ports.get(number)
        if policy is None or f"{SERVING_LABEL_PREFIX}{policy}" in selector:
            continue
        yield Finding(
            code=Code.PAUSED_RESIDENTS_REACHABLE,
            severity=Severity.ERROR,
            object=str(sender),
            path="spec.selector",
            message=f"{path} is port {number} of residents of {policy}, and the selector takes those of {template.object} that"
            " don't serve as well",
            mend=_mend(sender, policy),
        )


def _mend(sender: Object, policy: str) -> str:
    label = {f"{SERVING_LABEL_PREFIX}{policy}": "true"}
    nested = at(sender.body, "spec", "selector", "matchLabels") is not None
    return mends.merge_patch(sender, {"spec": {"selector": {"matchLabels": label} if nested else label}})
