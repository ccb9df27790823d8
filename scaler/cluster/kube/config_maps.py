"""ConfigMaps in which a controller keeps what must outlive it: found by a label, replaced whole, each version by one writer.

What somebody else has written since it was read isn't overwritten: that writer leads now, or a person has mended something.
"""

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
        self._sent: dict[str, Mapping[str, str]] = {}  # by name, what was sent last and not answered

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
            await self._is_ours(name)
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
        self._sent[name] = dict(data)
        try:
            lane = self._lanes.orders if awaited else self._lanes.housekeeping
            written = await self._writing.send(lane, request, seconds=_SECONDS)
        except (Withheld, Forbidden, Rejected):
            self._sent.pop(name, None)  # nothing was written
            raise
        except Conflict:
            if not await self._is_ours(name):
                raise
            return
        self._sent.pop(name, None)
        self._versions[name] = config_from_json(written).version

    async def _is_ours(self, name: str) -> bool:
        """Say whether what is there is what was sent and not answered, or answered when it was sent twice; then take its version."""
        request = Request(path=CONFIG_MAP.path(self._namespace, name))
        try:
            there = config_from_json(await self._writing.client.call(request, seconds=_SECONDS))
        except NotFound:
            self._sent.pop(name, None)
            self._versions.pop(name, None)
            return False
        if ours := there.data == self._sent.pop(name, None):
            self._versions[name] = there.version
        return ours
