"""The ConfigMap with the policies, followed: a volume of it would be up to a minute and a half late.

A kubelet looks at what it has mounted about once a minute, and takes what it has cached. A watch tells within milliseconds.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.reflector import Reflector, Timing
from scaler.cluster.kube.resources import CONFIG_MAP, Collection
from scaler.cluster.kube.views import Json
from scaler.errors import NotFound

_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What a ConfigMap holds.

    Attributes:
        version: its resource version.
        texts: by key, those under `binaryData` too: kubectl puts what is no UTF-8 there.
    """

    version: str
    texts: Mapping[str, bytes]


def texts_from_json(body: Json) -> Texts:
    """Read a ConfigMap. PURE."""
    texts = {key: str(text).encode() for key, text in (body.get("data") or {}).items()}
    texts |= {key: _bytes(str(text)) for key, text in (body.get("binaryData") or {}).items()}
    version = str(body["metadata"].get("resourceVersion", ""))
    return Texts(version=version, texts=MappingProxyType(texts))


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text.encode()


class PolicyConfigMap:
    """One ConfigMap, and no other of its namespace; `run` inside a TaskGroup.

    Args:
        client: reaches the server.
        namespace: where it is.
        name: its name.
        timing: how long its watch may take; None: as all watches.

    Attributes:
        place: `configmap/NAME`, as faults name it.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str, timing: Timing | None = None) -> None:
        self.place = f"configmap/{name}"
        self._client = client
        self._namespace, self._name = namespace, name
        source = Collection(
            kind=CONFIG_MAP, namespace=namespace, selectors={"fieldSelector": f"metadata.name={name}"}
        )
        self._reflector = Reflector(client, source, texts_from_json, timing)

    @property
    def synced(self) -> bool:
        """Whether it has been looked for."""
        return self._reflector.synced

    @property
    def current(self) -> Texts | None:
        """What it holds, as far as the server has told; None where it isn't there."""
        return self._reflector.get(f"{self._namespace}/{self._name}")

    async def fetch(self) -> Texts | None:
        """Ask for what it holds now; None where it isn't there.

        Raises:
            ClusterError: the server doesn't say.
        """
        request = Request(path=CONFIG_MAP.path(self._namespace, self._name))
        try:
            body: Any = await self._client.call(request, seconds=_SECONDS)
        except NotFound:
            return None
        self._reflector.learn(body)
        return texts_from_json(body)

    async def run(self) -> None:
        """Follow it until cancelled."""
        await self._reflector.run()
