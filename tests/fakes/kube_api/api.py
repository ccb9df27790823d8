"""The server's answers, without HTTP: objects are made, read, changed and deleted here."""

import base64
import binascii
import copy
import json
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.fakes.kube_api import evictions, patches, rules
from tests.fakes.kube_api.faults import Call, Faults
from tests.fakes.kube_api.kinds import BUDGET, NAMESPACE, POD, PRIORITY_CLASS, Kind
from tests.fakes.kube_api.refusals import (
    Refusal,
    already_exists,
    bad_request,
    forbidden,
    modified,
    not_found,
    precondition,
)
from tests.fakes.kube_api.selectors import selection
from tests.fakes.kube_api.store import Change, Key, Store, Stored, stored

Body = dict[str, Any]
Query = Mapping[str, str]
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
ANONYMOUS = "system:anonymous"


def _everything(_: Call) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class User:
    """Somebody with a token, and what they may do."""

    name: str
    may: Callable[[Call], bool] = _everything


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast the server's time goes.

    Attributes:
        second: how many real seconds one of the server's lasts, in timeouts of watches.
        bookmarks: seconds between bookmarks.
    """

    second: float = 1.0
    bookmarks: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a request is about."""

    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _continued(token: str) -> int:
    """Return the version that a continue token speaks of."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        raise bad_request(f"invalid continue token: {token}") from None
    try:
        return int(json.loads(raw)["rv"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        shown = repr(raw[:1])[2:-1]
        raise bad_request(
            "invalid continue token: continue key is not valid: "
            f"invalid character '{shown}' looking for beginning of value"
        ) from None


def continue_token(version: int, last: str) -> str:
    body = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"{last}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")


class KubeApi:
    """One API server.

    Args:
        users: by token; the empty token is that of requests without any, which otherwise may do nothing.
        pace: how fast its time goes.
        wall: Unix seconds.

    Attributes:
        store: its objects.
        faults: what goes wrong.
        calls: all requests so far.
        backlogs: of each watch the changes that it hasn't been sent yet.
    """

    def __init__(
        self,
        users: Mapping[str, User] | None = None,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.users = dict(users or {"test": User(name="test")})
        self.pace = pace or Pace()
        self.store = Store()
        self.faults = Faults()
        self.calls: list[Call] = []
        self.backlogs: list[deque[Change]] = []
        self._wall = wall
        self._random = random.Random()
        self._applied: dict[tuple[Kind, Key], dict[str, set[tuple[str, ...]]]] = {}

    @property
    def behind(self) -> int:
        """How many changes the slowest watch is behind."""
        return max(map(len, self.backlogs), default=0)

    # ------------------------------------------------------------ who

    def admit(self, authorization: str, call: Call, kind: Kind | None) -> None:
        """Refuse a wrong token, and what the user may not do.

        Raises:
            Refusal: 401 or 403.
        """
        scheme, _, token = authorization.partition(" ")
        if authorization and (scheme != "Bearer" or token.strip() not in self.users):
            raise Refusal(401, "Unauthorized", "Unauthorized")
        user = self.users.get(token.strip(), User(name=ANONYMOUS, may=lambda _: False))
        if kind is not None and not user.may(call):
            raise forbidden(kind, call.name, user.name, call.verb, call.namespace)

    # ------------------------------------------------------------ reading

    def get(self, target: Target) -> Body | Stored:
        found = self.store.read(target.kind, target.key)
        if found is None:
            raise not_found(target.kind, target.name)
        return self._scale(found.body) if target.subresource == "scale" else found

    def listing(self, target: Target, query: Query) -> tuple[Body, Sequence[Stored]]:
        """Return the list's metadata and its items."""
        version = self.store.read_version
        self._check_version(query.get("resourceVersion", ""), version)
        matches = selection(target.kind, query)
        if token := query.get("continue", ""):
            version = _continued(token)
            rest = self.store.page((target.kind, token))
        else:
            rest = [
                item
                for item in self.store.all(target.kind, target.namespace)
                if matches is None or matches(item.body)
            ]
        limit = int(query.get("limit", "0") or 0)
        metadata: Body = {"resourceVersion": str(version)}
        if not limit or len(rest) <= limit:
            return metadata, rest
        page, left = rest[:limit], rest[limit:]
        metadata["continue"] = continue_token(version, page[-1].body["metadata"]["name"])
        self.store.keep_page((target.kind, metadata["continue"]), left)
        if matches is None:
            metadata["remainingItemCount"] = len(left)
        return metadata, page

    def _check_version(self, text: str, current: int) -> None:
        if text in {"", "0"}:
            return
        if not text.isdigit():
            raise bad_request(f'resourceVersion: Invalid value: "{text}"')
        if int(text) > current:
            raise Refusal(
                504,
                "Timeout",
                f"Timeout: Too large resource version: {text}, current: {current}",
                details={
                    "causes": [
                        {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
                    ],
                    "retryAfterSeconds": 1,
                },
                headers={"Retry-After": "1"},
            )

    # ------------------------------------------------------------ creating

    def create(self, target: Target, body: Body, query: Query) -> tuple[Stored, list[str]]:
        """Return the new object and warnings."""
        self._check_namespace(target)
        body, warnings = rules.decode(target.kind, body, query)
        given = body.get("metadata") or {}
        name = given.get("name") or self._generated(given.get("generateName", ""))
        rules.check_name(target.kind, name)
        key = (target.namespace, name)
        if self.store.get(target.kind, key) is not None:
            raise already_exists(target.kind, name)
        metadata = {
            "name": name,
            **({"generateName": given["generateName"]} if given.get("generateName") else {}),
            **({"namespace": target.namespace} if target.kind.namespaced else {}),
            "uid": str(uuid.uuid4()),
            **({"generation": 1} if target.kind.generation else {}),
            "creationTimestamp": timestamp(self._wall()),
            **self._kept(given),
        }
        new = {**body, "kind": target.kind.kind, "apiVersion": target.kind.api_version, "metadata": metadata}
        if target.kind.status:
            new["status"] = {}
        if target.kind is POD:
            new = self._with_priority(new)
        new = rules.with_defaults(target.kind, rules.admitted(target.kind, new))
        rules.check(target.kind, new)
        if query.get("dryRun"):
            return stored(new), warnings
        return self.store.put(target.kind, key, new), warnings

    def _with_priority(self, pod: Body) -> Body:
        """Return a new pod with the priority of its class, as the admission plug-in leaves it."""
        name = (pod.get("spec") or {}).get("priorityClassName")
        if not name:
            return pod
        found = self.store.get(PRIORITY_CLASS, ("", name))
        if found is None:
            about = f'pods "{pod["metadata"]["name"]}" is forbidden'
            raise Refusal(403, "Forbidden", f"{about}: no PriorityClass with name {name} was found")
        policy = found.body.get("preemptionPolicy", "PreemptLowerPriority")
        given = {"priority": found.body["value"], "preemptionPolicy": policy}
        return {**pod, "spec": {**pod["spec"], **given}}

    def _check_namespace(self, target: Target) -> None:
        if target.kind.namespaced and self.store.get(NAMESPACE, ("", target.namespace)) is None:
            raise not_found(NAMESPACE, target.namespace)

    def _generated(self, prefix: str) -> str:
        return prefix and prefix + "".join(self._random.choices(_SUFFIX, k=5))

    @staticmethod
    def _kept(metadata: Mapping[str, Any]) -> Body:
        """Return what a client may set of an object's metadata."""
        kept = ("labels", "annotations", "ownerReferences", "finalizers")
        return {key: metadata[key] for key in kept if metadata.get(key)}

    # ------------------------------------------------------------ changing

    def patch(
        self, target: Target, content_type: str, patch: Any, query: Query
    ) -> tuple[Stored | Body, list[str]]:
        """Return the changed object and warnings; an apply creates what isn't there."""
        if content_type not in {patches.MERGE, patches.STRATEGIC, patches.JSON, patches.APPLY}:
            raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
        before = self.store.get(target.kind, target.key)
        if before is None:
            if content_type == patches.APPLY and not target.subresource:
                self._own(target, query, patches.leaves(self._content(patch)))
                return self.create(target, patch, query)
            raise not_found(target.kind, target.name)
        if target.subresource == "scale":
            return self._patch_scale(target, before, content_type, patch, query), []
        return self._update(target, before, self._patched(target, before, content_type, patch, query), query)

    def _patched(self, target: Target, before: Stored, content_type: str, patch: Any, query: Query) -> Body:
        if content_type == patches.APPLY:
            return self._apply(target, before.body, patch, query)
        return self._patched_body(target.kind, before.body, content_type, patch)

    @staticmethod
    def _patched_body(kind: Kind, before: Mapping[str, Any], content_type: str, patch: Any) -> Any:
        if content_type == patches.JSON:
            return patches.json_patch(before, patch)
        if content_type == patches.STRATEGIC:
            return patches.strategic(before, patch, kind.merge_keys)
        return patches.merge(before, patch)

    def _apply(self, target: Target, before: Mapping[str, Any], patch: Body, query: Query) -> Body:
        """Server-side apply; ownership is kept of what was applied, not of other writes."""
        manager = query.get("fieldManager")
        if not manager:
            raise bad_request('PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value')
        content = self._content(patch)
        now = patches.leaves(content)
        owners = self._applied.get((target.kind, target.key), {})
        for other, owned in owners.items():
            disputed = [
                leaf
                for leaf in now & owned
                if patches.value_at(before, leaf) != patches.value_at(content, leaf)
            ]
            if other != manager and disputed and query.get("force") != "true":
                raise Refusal(
                    409,
                    "Conflict",
                    f'Apply failed with 1 conflict: conflict with "{other}": .{".".join(disputed[0])}',
                )
        made: Body = copy.deepcopy(dict(before))
        others = {leaf for other, owned in owners.items() if other != manager for leaf in owned}
        for leaf in owners.get(manager, set()) - now - others:
            made = patches.without(made, leaf)
        self._own(target, query, now)
        applied: Body = patches.strategic(made, content, target.kind.merge_keys)
        return applied

    def _content(self, patch: Body) -> Body:
        """Return what an apply says of an object, without its name."""
        content = {
            key: value for key, value in patch.items() if key not in {"apiVersion", "kind", "metadata"}
        }
        kept = self._kept(patch.get("metadata") or {})
        return {**content, **({"metadata": kept} if kept else {})}

    def _own(self, target: Target, query: Query, owned: set[tuple[str, ...]]) -> None:
        if not query.get("dryRun"):
            self._applied.setdefault((target.kind, target.key), {})[query.get("fieldManager", "")] = owned

    def replace(self, target: Target, body: Body, query: Query) -> tuple[Stored | Body, list[str]]:
        """Return the changed object and warnings."""
        before = self.store.get(target.kind, target.key)
        if before is None:
            raise not_found(target.kind, target.name)
        if target.subresource == "scale":
            return self._write_scale(target, before, body, query), []
        body, warnings = rules.decode(target.kind, body, query)
        version = (body.get("metadata") or {}).get("resourceVersion")
        if not version and not target.kind.unconditional:
            raise rules.must_be_versioned(target.kind, target.name)
        uid = (body.get("metadata") or {}).get("uid")
        if uid and uid != before.body["metadata"]["uid"]:
            raise precondition(
                target.kind,
                target.name,
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before.body['metadata']['uid']}",
            )
        metadata = {**(body.get("metadata") or {}), "uid": before.body["metadata"]["uid"]}
        written, more = self._update(target, before, {**body, "metadata": metadata}, query)
        return written, warnings + more

    def _update(self, target: Target, before: Stored, body: Body, query: Query) -> tuple[Stored, list[str]]:
        kind, old = target.kind, before.body
        body, warnings = rules.decode(kind, body, query)
        metadata = body.get("metadata") or {}
        version = metadata.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise modified(kind, target.name)
        try:
            new = self._changed(target, old, body)
            rules.check(kind, new, old)
        except Refusal as refusal:
            self._warn(refusal, warnings)
            raise
        if new == old or query.get("dryRun"):
            return (before if new == old else stored(new)), warnings
        if self._finished(new):
            return self.store.remove(kind, target.key, new), warnings
        return self.store.put(kind, target.key, new), warnings

    @staticmethod
    def _warn(refusal: Refusal, warnings: Sequence[str]) -> None:
        for text in warnings:
            escaped = text.replace('"', '\\"')
            refusal.headers["Warning"] = f'299 - "{escaped}"'

    def _changed(self, target: Target, old: Mapping[str, Any], body: Body) -> Body:
        """Return the object after an update: what the subresource owns is taken from `body`, the rest from before."""
        kind = target.kind
        metadata = {
            key: value for key, value in old["metadata"].items() if key not in self._kept(old["metadata"])
        }
        given = body.get("metadata") or {}
        if target.subresource == "status":
            new = {**old, "status": body.get("status") or {}}
        else:
            new = {**body, "metadata": {**metadata, "uid": given.get("uid"), **self._kept(given)}}
            if kind.status:
                new["status"] = old.get("status") or {}
        new = {**new, "kind": kind.kind, "apiVersion": kind.api_version}
        new = rules.with_defaults(kind, new)
        if kind.generation and new.get("spec") != old.get("spec"):
            new["metadata"] = {**new["metadata"], "generation": old["metadata"]["generation"] + 1}
        return new

    @staticmethod
    def _finished(body: Mapping[str, Any]) -> bool:
        """Whether an object that was waiting for its finalizers has lost the last one."""
        metadata = body["metadata"]
        waiting = "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds")
        return waiting and not metadata.get("finalizers")

    # ------------------------------------------------------------ scale and binding

    def _scale(self, body: Mapping[str, Any]) -> Body:
        metadata = body["metadata"]
        labels = (body["spec"].get("selector") or {}).get("matchLabels") or {}
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {key: metadata[key] for key in kept},
            "spec": {"replicas": body["spec"]["replicas"]} if body["spec"]["replicas"] else {},
            "status": {
                "replicas": (body.get("status") or {}).get("replicas", 0),
                "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
            },
        }

    def _patch_scale(
        self, target: Target, before: Stored, content_type: str, patch: Any, query: Query
    ) -> Body:
        body = self._patched_body(target.kind, self._scale(before.body), content_type, patch)
        return self._write_scale(target, before, body, query)

    def _write_scale(self, target: Target, before: Stored, body: Body, query: Query) -> Body:
        replicas = (body.get("spec") or {}).get("replicas", 0)
        rules.check_scale(target.name, replicas)
        new = copy.deepcopy(dict(before.body))
        new["spec"]["replicas"] = replicas
        new["metadata"]["resourceVersion"] = (body.get("metadata") or {}).get("resourceVersion")
        whole = Target(kind=target.kind, namespace=target.namespace, name=target.name)
        written, _ = self._update(whole, before, new, query)
        return self._scale(written.body)

    def bind(self, target: Target, body: Body, query: Query) -> Body:
        before = self.store.get(POD, target.key)
        if before is None:
            raise not_found(POD, target.name)
        if before.body["spec"].get("nodeName"):
            raise precondition(POD, target.name, "pod is already assigned to node")
        new = copy.deepcopy(dict(before.body))
        new["spec"]["nodeName"] = body["target"]["name"]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(self._wall()),
        }
        others = [each for each in new["status"].get("conditions") or () if each["type"] != scheduled["type"]]
        new["status"]["conditions"] = [*others, scheduled]
        if not query.get("dryRun"):
            self.store.put(POD, target.key, new)
        return self.success(201)

    @staticmethod
    def success(code: int | None = None) -> Body:
        body: Body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return body if code is None else {**body, "code": code}

    # ------------------------------------------------------------ deleting

    def delete(self, target: Target, options: Body, query: Query) -> Stored | Body:
        """Delete one object, or begin to; pods that run on a node keep their grace."""
        before = self.store.get(target.kind, target.key)
        if before is None:
            raise not_found(target.kind, target.name)
        self._check_preconditions(target, before, options.get("preconditions") or {})
        if query.get("dryRun"):
            return before
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        if target.kind is POD:
            return self._delete_pod(target, before, None if grace is None else int(grace))
        if target.kind is NAMESPACE:
            self._empty(target.name)
        written = self._delete_now(target, before)
        if target.kind is NAMESPACE:
            return written
        about = {"name": target.name, "kind": target.kind.plural, "uid": before.body["metadata"]["uid"]}
        group = {"group": target.kind.group} if target.kind.group else {}
        return {**self.success(), "details": {**about, **group}}

    def evict(self, target: Target, body: Body, query: Query) -> Body:
        """Delete a pod if its budget allows.

        Raises:
            Refusal: 429 or 500, see `evictions.allow`; and what a deletion raises.
        """
        before = self.store.get(POD, target.key)
        if before is None:
            raise not_found(POD, target.name)
        options = body.get("deleteOptions") or {}
        self._check_preconditions(target, before, options.get("preconditions") or {})
        budget = evictions.allow(self.store, before.body, timestamp(self._wall()))
        if budget is not None and not query.get("dryRun"):
            self.store.put(BUDGET, (target.namespace, budget["metadata"]["name"]), budget)
        self.delete(target, options, query)
        return self.success(201)

    def _check_preconditions(self, target: Target, before: Stored, wanted: Mapping[str, str]) -> None:
        metadata = before.body["metadata"]
        uid, version = wanted.get("uid", metadata["uid"]), wanted.get("resourceVersion")
        if uid != metadata["uid"]:
            raise precondition(
                target.kind,
                target.name,
                f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). "
                "The object might have been deleted and then recreated",
            )
        if version is not None and version != metadata["resourceVersion"]:
            raise precondition(
                target.kind,
                target.name,
                f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
                f"({metadata['resourceVersion']}). The object might have been modified",
            )

    def _delete_pod(self, target: Target, before: Stored, asked: int | None) -> Stored:
        metadata = before.body["metadata"]
        usual = before.body["spec"]["terminationGracePeriodSeconds"]
        grace = usual if asked is None else asked
        if not before.body["spec"].get("nodeName") or before.body["status"].get("phase") in {
            "Succeeded",
            "Failed",
        }:
            grace = 0
        begun = self._wall()
        if "deletionTimestamp" in metadata:
            if grace >= metadata["deletionGracePeriodSeconds"]:
                return before
            ends = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp()
            begun = ends - metadata["deletionGracePeriodSeconds"]
        marked = {
            **before.body,
            "metadata": {
                **metadata,
                "generation": metadata["generation"] + ("deletionTimestamp" not in metadata),
                "deletionTimestamp": timestamp(begun + grace),
                "deletionGracePeriodSeconds": grace,
            },
        }
        put = self.store.put(POD, target.key, marked)
        if grace or metadata.get("finalizers"):
            return put
        self._applied.pop((POD, target.key), None)
        return self.store.remove(POD, target.key, put.body)  # in two versions, as the recordings show

    def _delete_now(self, target: Target, before: Stored) -> Stored:
        metadata = before.body["metadata"]
        if not metadata.get("finalizers"):
            self._applied.pop((target.kind, target.key), None)
            return self.store.remove(target.kind, target.key, before.body)
        if "deletionTimestamp" in metadata:
            return before
        marked = {**metadata, "deletionTimestamp": timestamp(self._wall()), "deletionGracePeriodSeconds": 0}
        return self.store.put(target.kind, target.key, {**before.body, "metadata": marked})

    def _empty(self, namespace: str) -> None:
        for kind, key in self.store.everything():
            if key[0] == namespace and (found := self.store.get(kind, key)) is not None:
                self.store.remove(kind, key, found.body)

    def delete_collection(self, target: Target, query: Query) -> tuple[Body, Sequence[Stored]]:
        metadata, items = self.listing(target, query)
        for item in items:
            one = Target(kind=target.kind, namespace=target.namespace, name=item.body["metadata"]["name"])
            self.delete(one, {}, query)
        return metadata, items
