"""Variables, commands and files that a pod's spec derives from the pod itself: the downward API and `$(VARIABLE)`. PURE."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
Lookup = Callable[[str, str], Mapping[str, str] | None]
"""Kind (`ConfigMap` or `Secret`) and name → its data; None where there is none."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.\-][\w.\-]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class Unmakeable(Exception):
    """A container can't be made as its spec wants: a reason as Kubernetes names it, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Fill in `$(NAME)`; an unknown one stays, and `$$` is a dollar sign."""

    def fill(found: re.Match[str]) -> str:
        if found.group(0) == "$$":
            return "$"
        return variables.get(found.group(1), found.group(0))

    return _REFERENCE.sub(fill, text)


def field_of(pod: Object, path: str) -> str:
    """Return what a `fieldRef` names.

    Raises:
        Unmakeable: there is no such field.
    """
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if keyed := _KEYED.fullmatch(path):
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.rpartition(".")[2]])
        case "metadata.labels" | "metadata.annotations":
            held = metadata.get(path.rpartition(".")[2]) or {}
            return "\n".join(
                f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sorted(held.items())
            )
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.rpartition(".")[2], ""))
        case "status.podIP" | "status.hostIP":
            return str(status.get(path.rpartition(".")[2], ""))
        case "status.podIPs":
            return ",".join(each["ip"] for each in status.get("podIPs") or ())
    raise Unmakeable("CreateContainerConfigError", f"unsupported fieldPath: {path}")


def resource_of(container: Object, reference: Object) -> str:
    """Return what a `resourceFieldRef` names, in whole units of its divisor 1."""
    kind, _, name = reference["resource"].partition(".")
    return str(((container.get("resources") or {}).get(kind) or {}).get(name, "0"))


def variables_of(pod: Object, container: Object, given: Mapping[str, str], look_up: Lookup) -> dict[str, str]:
    """Return a container's variables: those given, then `envFrom`, then `env`, each over those before.

    Raises:
        Unmakeable: something that is referred to isn't there.
    """
    made = dict(given)
    for source in container.get("envFrom") or ():
        for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if key in source:
                prefix = source.get("prefix", "")
                data = _data(kind, source[key], look_up) or {}
                made |= {f"{prefix}{name}": value for name, value in data.items()}
    for each in container.get("env") or ():
        value = _value(pod, container, each, made, look_up)
        if value is not None:
            made[each["name"]] = value
    return made


def _value(
    pod: Object, container: Object, entry: Object, made: Mapping[str, str], look_up: Lookup
) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return expanded(entry.get("value", ""), made)
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_of(container, source["resourceFieldRef"])
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if key in source:
            reference = source[key]
            data = _data(kind, reference, look_up)
            if data is not None and reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            message = f"couldn't find key {reference['key']} in {kind} {pod['metadata']['namespace']}/{reference['name']}"
            raise Unmakeable("CreateContainerConfigError", message)
    raise Unmakeable("CreateContainerConfigError", f"{entry['name']}: unsupported valueFrom")


def _data(kind: str, reference: Object, look_up: Lookup) -> Mapping[str, str] | None:
    data = look_up(kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise Unmakeable("CreateContainerConfigError", f'{kind.lower()} "{reference["name"]}" not found')
    return data


def references(pod: Object) -> set[tuple[str, str]]:
    """Name the ConfigMaps and Secrets that a pod's spec mentions, as kind and name."""
    spec = pod["spec"]
    found: set[tuple[str, str]] = set()
    for volume in spec.get("volumes") or ():
        for source in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
            if config := source.get("configMap"):
                found.add(("ConfigMap", config["name"]))
            if secret := source.get("secret"):
                found.add(("Secret", secret.get("secretName") or secret.get("name", "")))
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        found |= _of_container(container)
    return found


def _of_container(container: Object) -> set[tuple[str, str]]:
    sources = [each.get("valueFrom") or {} for each in container.get("env") or ()]
    sources += container.get("envFrom") or ()
    keys = {
        "configMapKeyRef": "ConfigMap",
        "secretKeyRef": "Secret",
        "configMapRef": "ConfigMap",
        "secretRef": "Secret",
    }
    return {(kind, source[key]["name"]) for source in sources for key, kind in keys.items() if key in source}


def filled(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    return [expanded(word, variables) for word in words]
