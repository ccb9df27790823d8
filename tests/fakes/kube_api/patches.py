"""The four kinds of patch, as far as they are used here."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kube_api.refusals import bad_request, rejected_patch

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    made = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made


def strategic(target: Any, patch: Any, keys: Mapping[str, str], path: str = "") -> Any:
    """As `merge`, but the lists in `keys` are merged item by item; `$patch` deletes or replaces where it is known."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    made = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        below = f"{path}.{key}" if path else key
        if value is None:
            made.pop(key, None)
        elif isinstance(value, list) and below in keys:
            made[key] = _strategic_list(made.get(key) or [], value, keys, below)
        else:
            made[key] = strategic(made.get(key), value, keys, below)
    return made


def _strategic_list(
    target: Sequence[Any], patch: Sequence[Any], keys: Mapping[str, str], path: str
) -> list[Any]:
    key = keys[path]
    if any(item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if "$patch" not in item]
    made = list(target)
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, there in enumerate(made) if there.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            made = [there for there in made if there.get(key) != item[key]]
        elif at is None:
            made.append(copy.deepcopy(item))
        else:
            made[at] = strategic(made[at], item, keys, path)
    return made


def _steps(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _step(holder: Any, key: str) -> Any:
    try:
        return holder[int(key)] if isinstance(holder, list) else holder[key]
    except (KeyError, IndexError, ValueError, TypeError):
        raise rejected_patch() from None


def json_patch(target: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902 without move and copy."""
    made = copy.deepcopy(dict(target))
    for operation in operations:
        *way, last = _steps(operation["path"])
        holder: Any = made
        for key in way:
            holder = _step(holder, key)
        _operate(holder, last, operation)
    return made


def _operate(holder: Any, key: str, operation: Mapping[str, Any]) -> None:
    match operation["op"]:
        case "test":
            missing = isinstance(holder, dict) and key not in holder
            if (None if missing else _step(holder, key)) != operation.get("value"):
                raise rejected_patch()
        case "add" if isinstance(holder, list):
            holder.insert(len(holder) if key == "-" else int(key), operation["value"])
        case "add":
            holder[key] = operation["value"]
        case "replace":
            _step(holder, key)
            holder[int(key) if isinstance(holder, list) else key] = operation["value"]
        case "remove":
            _step(holder, key)
            del holder[int(key) if isinstance(holder, list) else key]
        case other:
            raise bad_request(f"unsupported JSON patch operation {other}")


def leaves(body: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths of all values that a server-side apply owns; a list is one value."""
    if isinstance(body, Mapping) and body:
        return {leaf for key, value in body.items() for leaf in leaves(value, (*path, key))}
    return {path}


def without(body: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the body without the value at a path, and without what it leaves empty."""
    key, *rest = path
    if key not in body:
        return dict(body)
    if not rest:
        return {k: v for k, v in body.items() if k != key}
    below = without(body[key], tuple(rest)) if isinstance(body[key], Mapping) else body[key]
    return {k: (below if k == key else v) for k, v in body.items() if k != key or below not in ({}, None)}


def value_at(body: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        body = body.get(key) if isinstance(body, Mapping) else None
    return body
