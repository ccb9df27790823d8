"""Commands that mend what was found, as they stand on a command line. PURE."""

import json
import shlex
from collections.abc import Mapping, Sequence

from scaler.doctor.objects import Object
from scaler.doctor.picture import Template


def kubectl(*words: str, namespace: str = "") -> str:
    """Write a command of kubectl's."""
    where = ["-n", namespace] if namespace else []
    return shlex.join(["kubectl", *words, *where])


def of(verb: str, found: Object, *more: str) -> str:
    """Write a command about one object."""
    return kubectl(verb, found.kind.lower(), found.name, *more, namespace=found.namespace)


def merge_patch(found: Object, body: Mapping[str, object]) -> str:
    """Write the command that lays a body over an object."""
    return of("patch", found, "--type=merge", "-p", _json(body))


def json_patch(found: Object, *operations: Mapping[str, object]) -> str:
    """Write the command that carries out a JSON patch."""
    return of("patch", found, "--type=json", "-p", _json(operations))


def add(path: str, value: object) -> Mapping[str, object]:
    """Make the operation that sets a value, whether there was one or not."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Mapping[str, object]:
    """Make the operation that takes a value away."""
    return {"op": "remove", "path": path}


def in_template(template: Template, *operations: Mapping[str, object]) -> str:
    """Write the command that changes what pods are made from; a pod by itself can't be changed, so whoever made it is shown."""
    if not template.root:
        return of("get", template.object, "-o", "jsonpath={.metadata.ownerReferences}")
    return json_patch(template.object, *operations)


def written_by_template(template: Template, fleet: str, policies: str) -> str:
    """Write the command by which a pod template gets what makes its pods the seats of a fleet.

    Args:
        template: the template.
        fleet: the fleet.
        policies: path of the policies.
    """
    read = of("get", template.object, "-o", "yaml")
    write = shlex.join(["emberpool", "fleet", "template", fleet, "-f", policies, "-m", "-"])
    return f"{read} | {write} | kubectl apply -f -"


def _json(value: Mapping[str, object] | Sequence[object]) -> str:
    return json.dumps(value, separators=(",", ":"))
