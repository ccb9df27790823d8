"""NetworkPolicies that keep the controller from agents, or agents from the controller. PURE.

A pod that some policy selects takes only what one of them allows. What a policy allows is read as far as it names pods,
namespaces and ports; an address range is taken to hold whoever is meant.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Object, at, listed, mapping, selects, text, whole
from scaler.doctor.picture import CONTROLLER_LABELS, Part, Picture, Template

_INGRESS: Final = "Ingress"
_EGRESS: Final = "Egress"
_NAME: Final = "kubernetes.io/metadata.name"
"""Label that every namespace has, with its own name."""
CONTROLLER_PORT: Final = 9080
"""Where the controller's API listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    """Somebody on the network.

    Attributes:
        namespace: its namespace.
        namespace_labels: labels of that.
        labels: its own.
        port: where it listens.
    """

    namespace: str
    namespace_labels: Mapping[str, str]
    labels: Mapping[str, str]
    port: int


def check(picture: Picture) -> Iterator[Finding]:
    """Yield the policies that block agents."""
    for fleet in picture.fleets:
        controller = _controller(picture, fleet.namespace)
        for template in fleet.templates:
            agent = _peer(picture, fleet.namespace, template.labels, template.agent_port)
            yield from _between(
                picture, controller, agent, f"the controller can't reach agents of fleet {fleet.name}"
            )
            yield from _between(
                picture, agent, controller, f"agents of fleet {fleet.name} can't report to the controller"
            )


def _controller(picture: Picture, namespace: str) -> _Peer:
    """Return a namespace's controller: as it runs, else as its manifests have it."""
    found = picture.controller_of(namespace)
    if found is None:
        return _peer(picture, namespace, CONTROLLER_LABELS, CONTROLLER_PORT)
    template = Template(found, ("spec", "template"))
    port = template.named_port("http") or CONTROLLER_PORT
    return _peer(picture, found.namespace, template.labels, port)


def _peer(picture: Picture, namespace: str, labels: Mapping[str, str], port: int) -> _Peer:
    found = next((each.labels for each in picture.all(Part.NAMESPACES) if each.name == namespace), {})
    own = MappingProxyType({**found, _NAME: namespace})
    return _Peer(namespace=namespace, namespace_labels=own, labels=labels, port=port)


def _between(picture: Picture, caller: _Peer, called: _Peer, what: str) -> Iterator[Finding]:
    """Look at what the one may send and at what the other takes."""
    for own, other, direction in ((called, caller, _INGRESS), (caller, called, _EGRESS)):
        policies = [each for each in picture.all(Part.NETWORK_POLICIES) if _applies(each, own, direction)]
        if policies and not any(_allows(each, own, other, called.port, direction) for each in policies):
            yield Finding(
                code=Code.NETWORK_BLOCKS,
                severity=Severity.ERROR,
                object=str(policies[0]),
                path=f"spec.{direction.lower()}",
                message=f"{what}: {'it lets' if len(policies) == 1 else f'{len(policies)} policies let'} nothing"
                f" {'in from' if direction == _INGRESS else 'out to'} there on port {called.port}",
                mend=_mend(policies[0], other, called.port, direction),
            )


def _applies(policy: Object, own: _Peer, direction: str) -> bool:
    if policy.namespace != own.namespace or not selects(at(policy.body, "spec", "podSelector"), own.labels):
        return False
    types = listed(policy.body, "spec", "policyTypes")
    if types:
        return direction in types
    return direction == _INGRESS or at(policy.body, "spec", "egress") is not None


def _allows(policy: Object, own: _Peer, other: _Peer, port: int, direction: str) -> bool:
    ingress = direction == _INGRESS
    rules = listed(policy.body, "spec", direction.lower())
    return any(
        _names_port(listed(rule, "ports"), port)
        and _names_peer(listed(rule, "from" if ingress else "to"), own, other)
        for rule in rules
        if isinstance(rule, Mapping)
    )


def _names_port(ports: Sequence[Any], port: int) -> bool:
    return not ports or any(_is_port(each, port) for each in ports)


def _is_port(written: object, port: int) -> bool:
    if text(written, "protocol") not in {"", "TCP"}:
        return False
    first, last = whole(written, "port"), whole(written, "endPort")
    if first is None:
        return True  # all ports, or one by a name that is taken to be the right one
    return first == port or (last is not None and first <= port <= last)


def _names_peer(peers: Sequence[Any], own: _Peer, other: _Peer) -> bool:
    return not peers or any(_is_peer(each, own, other) for each in peers)


def _is_peer(written: object, own: _Peer, other: _Peer) -> bool:
    if mapping(written, "ipBlock"):
        return True
    namespaces, pods = at(written, "namespaceSelector"), at(written, "podSelector")
    if namespaces is None:
        inside = own.namespace == other.namespace
    else:
        inside = selects(namespaces, other.namespace_labels)
    return inside and (pods is None or selects(pods, other.labels))


def _mend(policy: Object, other: _Peer, port: int, direction: str) -> str:
    """Write the command that adds a rule for exactly this."""
    peer = {
        "namespaceSelector": {"matchLabels": {_NAME: other.namespace}},
        "podSelector": {"matchLabels": dict(other.labels)},
    }
    rule = {
        "from" if direction == _INGRESS else "to": [peer],
        "ports": [{"protocol": "TCP", "port": port}],
    }
    path = f"/spec/{direction.lower()}"
    if listed(policy.body, "spec", direction.lower()):
        return mends.json_patch(policy, mends.add(f"{path}/-", rule))
    return mends.json_patch(policy, mends.add(path, [rule]))
