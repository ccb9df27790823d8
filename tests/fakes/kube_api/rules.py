"""What the server adds to an object and what it refuses, per kind: as much as the recordings show and our writes need."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.kube_api.kinds import NODE, Kind
from tests.fakes.kube_api.refusals import (
    BAD_VALUE,
    FORBIDDEN,
    REQUIRED,
    Cause,
    Refusal,
    bad_request,
    invalid,
    unreadable,
)

Body = dict[str, Any]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_LABEL_LENGTH = 63
_NOTE_LENGTH = 1024
_MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})(Z|[+-]\d\d:\d\d)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_SPEC_TEXT = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)

# ---------------------------------------------------------------- decoding

_COMMON = frozenset({"apiVersion", "kind", "metadata"})
_FIELDS: Mapping[str, frozenset[str]] = {
    "ConfigMap": frozenset({"data", "binaryData", "immutable"}),
    "Secret": frozenset({"data", "stringData", "type", "immutable"}),
    "ServiceAccount": frozenset({"secrets", "imagePullSecrets", "automountServiceAccountToken"}),
    "EndpointSlice": frozenset({"addressType", "endpoints", "ports"}),
    "Role": frozenset({"rules"}),
    "ClusterRole": frozenset({"rules", "aggregationRule"}),
    "RoleBinding": frozenset({"roleRef", "subjects"}),
    "ClusterRoleBinding": frozenset({"roleRef", "subjects"}),
    "PriorityClass": frozenset({"value", "globalDefault", "description", "preemptionPolicy"}),
    "Event": frozenset(
        {"eventTime", "series", "reportingController", "reportingInstance", "action", "reason", "regarding"}
        | {
            "related",
            "note",
            "type",
            "deprecatedSource",
            "deprecatedFirstTimestamp",
            "deprecatedLastTimestamp",
        }
        | {"deprecatedCount"}
    ),
}
_DEFAULT_FIELDS = frozenset({"spec", "status"})
_TAINT_FIELDS = frozenset({"key", "value", "effect", "timeAdded"})


def decode(kind: Kind, body: Body, query: Mapping[str, str]) -> tuple[Body, list[str]]:
    """Drop what the kind doesn't have, and return it with a warning for each; times are checked.

    Raises:
        Refusal: 400, a field is unknown and the request is strict, or a time can't be read.
    """
    known = _COMMON | _FIELDS.get(kind.kind, _DEFAULT_FIELDS)
    unknown = [f'unknown field "{key}"' for key in body if key not in known]
    made = {key: value for key, value in body.items() if key in known}
    if kind is NODE:
        made = _without_unknown_taint_fields(made, unknown)
    if unknown and query.get("fieldValidation") == "Strict":
        raise unreadable(kind, "strict decoding error: " + ", ".join(unknown))
    if kind.kind == "Lease":
        for name in ("acquireTime", "renewTime"):
            _micro_time(kind, (made.get("spec") or {}).get(name))
    if kind.kind == "Event":
        _micro_time(kind, made.get("eventTime"))
    return made, unknown


def _without_unknown_taint_fields(body: Body, unknown: list[str]) -> Body:
    taints = (body.get("spec") or {}).get("taints")
    if not taints:
        return body
    unknown += [
        f'unknown field "spec.taints[{i}].{key}"'
        for i, taint in enumerate(taints)
        for key in taint
        if key not in _TAINT_FIELDS
    ]
    kept = [{key: value for key, value in taint.items() if key in _TAINT_FIELDS} for taint in taints]
    return {**body, "spec": {**body["spec"], "taints": kept}}


def _micro_time(kind: Kind, text: str | None) -> None:
    if text is None or _MICRO.fullmatch(text):
        return
    seconds = _TIME.match(text)
    rest = text[seconds.end() :] if seconds else text
    wanted = ".000000" if seconds else "2006"
    raise unreadable(
        kind,
        f'parsing time "{text}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "{rest}" as "{wanted}"',
    )


# ---------------------------------------------------------------- defaults


def _with(defaults: Mapping[str, Any], body: Mapping[str, Any]) -> Body:
    return {**{key: value for key, value in defaults.items() if key not in body}, **body}


_POD_SPEC = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for key in ("not-ready", "unreachable")
]
_CONTAINER = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "Always",
}


def _pod_spec(spec: Mapping[str, Any]) -> Body:
    lists = {
        name: [_with(_CONTAINER, container) for container in spec[name]]
        for name in ("containers", "initContainers")
        if name in spec
    }
    return _with(_POD_SPEC, {**spec, **lists})


_CONDITION = {
    "Pod": ("lastProbeTime", "lastTransitionTime"),
    "Node": ("lastHeartbeatTime", "lastTransitionTime"),
}


def _conditions(kind: Kind, status: Mapping[str, Any]) -> Body:
    if kind.kind not in _CONDITION or not status.get("conditions"):
        return dict(status)
    times: Mapping[str, Any] = dict.fromkeys(_CONDITION[kind.kind])
    return {**status, "conditions": [_with(times, condition) for condition in status["conditions"]]}


def _pod(body: Body) -> Body:
    spec = _with(
        {
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": _TOLERATIONS,
        },
        _pod_spec(body.get("spec") or {}),
    )
    return {
        **body,
        "spec": spec,
        "status": _with({"phase": "Pending", "qosClass": "BestEffort"}, body["status"]),
    }


_NODE_INFO = (
    "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion"
    " operatingSystem architecture"
)


def _node(body: Body) -> Body:
    defaults = {
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
        "nodeInfo": dict.fromkeys(_NODE_INFO.split(), ""),
    }
    return {**body, "spec": body.get("spec") or {}, "status": _with(defaults, body["status"])}


def _workload(body: Body) -> Body:
    spec = body.get("spec") or {}
    template = spec.get("template") or {}
    defaults: Body = {"replicas": 1}
    if body["kind"] == "Deployment":
        defaults |= {
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
            },
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
        }
    made = {**template, "spec": _pod_spec(template.get("spec") or {})}
    return {**body, "spec": _with(defaults, {**spec, "template": made})}


def _event(body: Body) -> Body:
    return _with(
        {"deprecatedSource": {}, "deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None}, body
    )


def _namespace(body: Body) -> Body:
    labels = {
        **(body["metadata"].get("labels") or {}),
        "kubernetes.io/metadata.name": body["metadata"]["name"],
    }
    made = {**body, "metadata": {**body["metadata"], "labels": labels}}
    return {
        **made,
        "spec": {"finalizers": ["kubernetes"]},
        "status": _with({"phase": "Active"}, body["status"]),
    }


def _secret(body: Body) -> Body:
    """`stringData` is what may be written, and `data` what is read."""
    encoded = {
        key: base64.b64encode(value.encode()).decode()
        for key, value in (body.get("stringData") or {}).items()
    }
    made = {key: value for key, value in body.items() if key != "stringData"}
    data = {**(made.get("data") or {}), **encoded}
    return _with({"type": "Opaque"}, {**made, **({"data": data} if data else {})})


_DEFAULTS: Mapping[str, Callable[[Body], Body]] = {
    "Pod": _pod,
    "Node": _node,
    "Namespace": _namespace,
    "Secret": _secret,
    "Event": _event,
    "Deployment": _workload,
    "ReplicaSet": _workload,
    "StatefulSet": _workload,
}


def with_defaults(kind: Kind, body: Body) -> Body:
    if kind.status:
        body = {**body, "status": _conditions(kind, body.get("status") or {})}
    return _DEFAULTS[kind.kind](body) if kind.kind in _DEFAULTS else body


def admitted(kind: Kind, body: Body) -> Body:
    """Return a new object as the admission plug-ins leave it: a new node isn't ready."""
    if kind is not NODE:
        return body
    taints = (body.get("spec") or {}).get("taints") or []
    return {
        **body,
        "spec": {
            **(body.get("spec") or {}),
            "taints": [*taints, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
        },
    }


# ---------------------------------------------------------------- validation


def check_name(kind: Kind, name: str) -> None:
    if not name:
        raise invalid(
            kind.kind, "", [(REQUIRED, "metadata.name", "Required value: name or generateName is required")]
        )
    if not _NAME.fullmatch(name):
        raise invalid(
            kind.kind, name, [(BAD_VALUE, "metadata.name", f'Invalid value: "{name}": {_NAME_TEXT}')]
        )


def check(kind: Kind, body: Body, before: Mapping[str, Any] | None = None) -> None:
    """Refuse what the server refuses; `before` is what an update changes.

    Raises:
        Refusal: 422.
    """
    causes = [*_labels(body), *_by_kind(kind, body)]
    if before is not None:
        causes += _immutable(kind, body, before)
    if causes:
        raise invalid(
            kind.kind,
            body["metadata"]["name"],
            causes,
            group=kind.group if kind.group not in {"", "events.k8s.io"} else "",
            repeats=_REPEATS if before is not None and kind.kind in _CONDITION else {},
        )


def _labels(body: Body) -> list[Cause]:
    return [
        (BAD_VALUE, "metadata.labels", f'Invalid value: "{value}": {_LABEL_TEXT}')
        if isinstance(value, str) and len(value) <= _LABEL_LENGTH
        else (
            BAD_VALUE,
            "metadata.labels",
            f'Invalid value: "{value}": must be no more than {_LABEL_LENGTH} bytes',
        )
        for value in (body["metadata"].get("labels") or {}).values()
        if not isinstance(value, str) or len(value) > _LABEL_LENGTH or not _LABEL.fullmatch(value)
    ]


def _by_kind(kind: Kind, body: Body) -> list[Cause]:
    spec = body.get("spec") or {}
    if kind.kind == "Pod" and not spec.get("containers"):
        return [(REQUIRED, "spec.containers", "Required value")]
    if kind.kind == "Node":
        return [
            (REQUIRED, f"metadata.taints[{i}].effect", "Required value")
            for i, taint in enumerate(spec.get("taints") or [])
            if not taint.get("effect")
        ]
    return _event_causes(body) if kind.kind == "Event" else []


def _event_causes(body: Body) -> list[Cause]:
    causes: list[Cause] = []
    regarding, namespace = (body.get("regarding") or {}).get("namespace", ""), body["metadata"]["namespace"]
    if regarding != namespace and not (not regarding and namespace == "default"):
        causes.append(
            (
                BAD_VALUE,
                "involvedObject.namespace",
                f'Invalid value: "{regarding}": does not match event.namespace',
            )
        )
    if not body.get("eventTime"):
        return [*causes, (REQUIRED, "eventTime", "Required value")]
    causes += [
        (REQUIRED, field, "Required value")
        for field in ("reportingController", "reportingInstance", "action", "reason")
        if not body.get(field)
    ]
    if body.get("type") not in {"Normal", "Warning"}:
        causes.append((BAD_VALUE, "type", f'Invalid value: "{body.get("type", "")}": has invalid value'))
    if len(body.get("note", "")) > _NOTE_LENGTH:
        causes.append((BAD_VALUE, "note", f"Invalid value: can have at most {_NOTE_LENGTH} characters"))
    return causes


_REPEATS = {"metadata.labels": 4, "metadata.uid": 2, "metadata.taints": 2}
"""How often the details of an update's refusal tell the same fault: several of the server's checks find it."""
_MUTABLE_SPEC = frozenset({"activeDeadlineSeconds", "tolerations", "containers", "initContainers"})
_EVENT_MUTABLE = frozenset({"series", "metadata"})


def _immutable(kind: Kind, body: Body, before: Mapping[str, Any]) -> list[Cause]:
    uid = body["metadata"].get("uid")
    if uid != before["metadata"]["uid"]:
        return [(BAD_VALUE, "metadata.uid", f'Invalid value: "{uid}": field is immutable')]
    if kind.kind == "Pod":
        new, old = body.get("spec") or {}, before.get("spec") or {}
        if any(new.get(key) != old.get(key) for key in {*new, *old} - _MUTABLE_SPEC):
            return [(FORBIDDEN, "spec", _SPEC_TEXT)]
    if kind.kind == "Event":
        return [
            (BAD_VALUE, key, f"Invalid value: {json.dumps(body.get(key))}: field is immutable")
            for key in {*body, *before} - _EVENT_MUTABLE
            if body.get(key) != before.get(key)
        ]
    return []


def check_scale(name: str, replicas: Any) -> None:
    if not isinstance(replicas, int):
        raise bad_request("spec.replicas: not a whole number")
    if replicas < 0:
        raise invalid(
            "Scale",
            name,
            [(BAD_VALUE, "spec.replicas", f"Invalid value: {replicas}: must be greater than or equal to 0")],
            group="autoscaling",
        )


def must_be_versioned(kind: Kind, name: str) -> Refusal:
    return invalid(
        kind.kind,
        name,
        [(BAD_VALUE, "metadata.resourceVersion", "Invalid value: 0: must be specified for an update")],
        group=kind.group,
    )
