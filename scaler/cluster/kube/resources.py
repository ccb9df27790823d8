"""Where objects live: the paths of kinds, of one object, and of its subresources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object, as paths and references name it.

    Attributes:
        group: the API group; empty for the core group.
        version: the group's version.
        plural: as in paths.
        name: as in an object's `kind`.
        namespaced: whether its objects live in namespaces.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection(self, namespace: str = "") -> str:
        """Return the path of all objects, of one namespace or of all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            return f"{root}/namespaces/{quote(namespace, safe='')}/{self.plural}"
        return f"{root}/{self.plural}"

    def path(self, namespace: str, name: str, subresource: str = "") -> str:
        """Return the path of one object, or of a subresource of it."""
        own = f"{self.collection(namespace)}/{quote(name, safe='')}"
        return f"{own}/{subresource}" if subresource else own


POD = Kind(plural="pods", name="Pod")
NODE = Kind(plural="nodes", name="Node", namespaced=False)
CONFIG_MAP = Kind(plural="configmaps", name="ConfigMap")
EVENT = Kind(group="events.k8s.io", plural="events", name="Event")
LEASE = Kind(group="coordination.k8s.io", plural="leases", name="Lease")
SERVICE = Kind(plural="services", name="Service")
DEPLOYMENT = Kind(group="apps", plural="deployments", name="Deployment")
REPLICA_SET = Kind(group="apps", plural="replicasets", name="ReplicaSet")
STATEFUL_SET = Kind(group="apps", plural="statefulsets", name="StatefulSet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A set of objects that can be listed and watched.

    Attributes:
        kind: of what kind.
        namespace: where; empty for all namespaces, or for a kind without.
        selectors: `labelSelector` and `fieldSelector`.
    """

    kind: Kind
    namespace: str = ""
    selectors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def path(self) -> str:
        """The path under which it is listed."""
        return self.kind.collection(self.namespace)

    def __str__(self) -> str:
        """Say what it is, for logs: `pods in team-a`."""
        where = f" in {self.namespace}" if self.namespace else ""
        which = ", ".join(self.selectors.values())
        return f"{self.kind.plural}{where}" + (f" ({which})" if which else "")
