"""ConfigMaps in which a controller keeps what must outlive it: found by a label, replaced whole, each version by one writer.

What somebody else has written since it was read isn't overwritten: that writer leads now, or a person has mended something.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from scaler.cluster.kube.client import Request
from scaler.cluster.kube.errors import Forbidden, Rejected, Withheld
from scaler.cluster.kube.lanes import Lanes
from scaler.cluster.kube.resources import CONFIG_MAP
from scaler.cluster.kube.views import Config, config_from_json
from scaler.cluster.kube.writing import MANAGER, Writing
from scaler.errors import Conflict, NotFound

KEPT_LABEL: Final = "emberpool.dev/kept"
"""On each of them; its value says of which fleet."""
_PAGE: Final = 100
_SECONDS: Final = 5.0
_MOST_UNANSWERED: Final = 4
"""Of one ConfigMap; of more than that the oldest are forgotten, and one of them that arrives after all is taken for somebody else's."""


class KeptConfigMaps:
    """All of a namespace's.

    Args:
        writing: sends the writes.
        through: the lanes that they take.
        namespace: where they are.
    """

    def __init__(self, writing: Writing, through: Lanes, namespace: str) -> None:
        self._writing = writing
        self._lanes = through
        self._namespace = namespace
        self._versions: dict[str, str] = {}
        # by name, what was sent and not answered, the latest last
        self._sent: dict[str, deque[Mapping[str, str]]] = {}

    async def read(self) -> Mapping[str, Config]:
        """Return all, by what they are of.

        Raises:
            ClusterError: they can't be read now.
        """
        found: dict[str, Config] = {}
        query = {"labelSelector": KEPT_LABEL, "limit": str(_PAGE)}
        while True:
            request = Request(path=CONFIG_MAP.collection(self._namespace), query=query)
            page: Any = await self._writing.client.call(request, seconds=_SECONDS)
            for body in page.get("items") or ():
                label = str((body["metadata"].get("labels") or {}).get(KEPT_LABEL, ""))
                found[label] = config_from_json(body)
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                break
            query = {**query, "continue": following}
        self._versions = {config.name: config.version for config in found.values()}
        self._sent.clear()
        return found

    async def write(self, of: str, data: Mapping[str, str], *, awaited: bool = False) -> None:
        """Replace one, or make it. Two writes of the same come one after the other, which is the caller's to see to.

        Args:
            of: what it is of; a label's value.
            data: file name → text.
            awaited: a person waits for it, and housekeeping is not to stand before it.

        Raises:
            Conflict: somebody else has written it since it was read.
            ClusterError: it can't be written now.
        """
        name = f"emberpool-kept-{of}"
        if name in self._sent:
            await self._look(name)
        try:
            await self._send(name, of, data, awaited=awaited)
        except Conflict:
            if (found := await self._look(name)) is None:
                raise
            if found != data:  # an earlier one of ours, which took its time; nobody else has written
                await self._send(name, of, data, awaited=awaited)

    async def _send(self, name: str, of: str, data: Mapping[str, str], *, awaited: bool) -> None:
        """Replace one of the version that is known, or make it.

        Raises:
            Conflict: another version is there.
            ClusterError: it can't be written now.
        """
        version = self._versions.get(name)
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {KEPT_LABEL: of},
            **({"resourceVersion": version} if version else {}),
        }
        request = Request(
            method="PUT" if version else "POST",
            path=CONFIG_MAP.path(self._namespace, name)
            if version
            else CONFIG_MAP.collection(self._namespace),
            body={
                "apiVersion": CONFIG_MAP.api_version,
                "kind": CONFIG_MAP.name,
                "metadata": metadata,
                "data": dict(data),
            },
            query={"fieldManager": MANAGER},
        )
        unanswered = self._sent.setdefault(name, deque(maxlen=_MOST_UNANSWERED))
        unanswered.append(dict(data))
        try:
            lane = self._lanes.orders if awaited else self._lanes.housekeeping
            written = await self._writing.send(lane, request, seconds=_SECONDS)
        except (Withheld, Forbidden, Rejected):
            unanswered.pop()  # nothing was written
            if not unanswered:
                self._sent.pop(name, None)
            raise
        # those before it were of the same version or an older one, and can't be carried out any more
        self._sent.pop(name, None)
        self._versions[name] = config_from_json(written).version

    async def _look(self, name: str) -> Mapping[str, str] | None:
        """Look whether what is there is what was sent and not answered, or answered when it was sent twice; then take its version.

        While the version is as it was, what was sent may still arrive, however late: it isn't forgotten.

        Returns:
            What is there if it is ours and new; else None.
        """
        request = Request(path=CONFIG_MAP.path(self._namespace, name))
        try:
            there = config_from_json(await self._writing.client.call(request, seconds=_SECONDS))
        except NotFound:
            self._versions.pop(name, None)
            return None
        if there.version == self._versions.get(name):
            return None
        if there.data not in self._sent.pop(name, ()):
            return None
        self._versions[name] = there.version
        return there.data
