"""What a pod's containers are started with: image, files, variables, and where they run."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from scaler.cluster.kube.resources import CONFIG_MAP, Kind
from scaler.errors import ClusterError
from tests.fakes.kube_calls import SECRET, SERVICE, Calls, Object
from tests.fakes.kubelet import environment, probes
from tests.fakes.kubelet.containers import Pace, ports_of
from tests.fakes.kubelet.devices import devices_wanted
from tests.fakes.kubelet.environment import Unmakeable
from tests.fakes.kubelet.images import Images
from tests.fakes.kubelet.network import Network, Place
from tests.fakes.kubelet.processes import Start
from tests.fakes.kubelet.volumes import Volumes, data_of

CLAIM_TEMPLATE = Kind(group="resource.k8s.io", plural="resourceclaimtemplates", name="ResourceClaimTemplate")
_BEFORE, _AFTER = r"(?<![\w.-])", r"(?![\w-]|\.\w)"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the pods of all nodes have in common.

    Attributes:
        calls: calls of the API server.
        network: gives pods their addresses.
        root: folder of pods' volumes; short, for the sockets in them may have no long names.
        logs: folder of containers' logs, laid out as a kubelet's.
        images: what images there are.
        pace: how long things take.
        claims: folders that stand for PersistentVolumeClaims.
        kubeconfig: how pods reach the API server that have a service account's token; None lets none.
        accounts: service account → a kubeconfig of its own in the place of that.
    """

    calls: Calls
    network: Network
    root: Path
    logs: Path
    images: Images = field(default_factory=Images)
    pace: Pace = field(default_factory=Pace)
    claims: Mapping[str, Path] = field(default_factory=dict)
    kubeconfig: Path | None = None
    accounts: Mapping[str, Path] = field(default_factory=dict)


class PodMaker:
    """Makes one pod's containers.

    Args:
        setting: what all pods have in common.
        pod: returns the newest version of the object.
    """

    def __init__(self, setting: Setting, pod: Callable[[], Object]) -> None:
        self._setting = setting
        self._pod = pod
        self._place = Place("")
        self._gpus: Mapping[str, tuple[str, ...]] = {}
        self._volumes: Volumes | None = None
        self._data: dict[tuple[str, str], Mapping[str, str] | None] = {}
        self._services: Mapping[str, str] = {}
        uid: str = pod()["metadata"]["uid"]
        self._root = setting.root / uid[:8]

    def settle(self, place: Place, gpus: Mapping[str, tuple[str, ...]]) -> None:
        """Take over where the pod runs, and which GPUs each container has."""
        self._place, self._gpus = place, gpus

    # ------------------------------------------------------------ files

    async def claimed(self) -> Mapping[str, int]:
        """Return how many GPUs each of the pod's claims wants, as their templates say.

        Raises:
            Unmakeable: there is no such template, as far as the API server tells.
        """
        pod, found = self._pod(), {}
        for claim in pod["spec"].get("resourceClaims") or ():
            name, template = claim.get("resourceClaimTemplateName", ""), None
            with suppress(ClusterError):
                template = await self._setting.calls.find(CLAIM_TEMPLATE, pod["metadata"]["namespace"], name)
            if template is None:
                raise Unmakeable("FailedResourceClaimCreation", f'resourceclaimtemplate "{name}" not found')
            found[claim["name"]] = devices_wanted(template)
        return found

    async def refresh(self) -> None:
        """Write anew what comes from objects and from the pod itself, where that has changed.

        Raises:
            Unmakeable: something isn't there.
            ClusterError: the API server can't be asked.
        """
        await self._fetch()
        await asyncio.to_thread(self._write_files)

    def _addressed(self, text: str) -> str:
        """Put addresses where text means the pod itself, or names a Service of its namespace or a pod behind one.

        There is no DNS here. What a name stands for is settled when a container starts; a Service's name without its namespace is
        seen in URLs only.
        """
        namespace = self._pod()["metadata"]["namespace"]
        full = rf"\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?"
        for service, address in self._services.items():
            name = re.escape(service)
            if address == "None":
                text = re.sub(
                    rf"{_BEFORE}([a-z0-9][a-z0-9-]*)\.{name}(?:{full})?{_AFTER}", self._address_of, text
                )
            else:
                text = re.sub(rf"(?:{_BEFORE}{name}{full}|(?<=//){name}){_AFTER}", address, text)
        return self._place.translated(text)

    def _address_of(self, found: re.Match[str]) -> str:
        return self._setting.network.address_of(f"{self._pod()['metadata']['namespace']}/{found.group(1)}")

    async def _fetch(self) -> None:
        namespace = self._pod()["metadata"]["namespace"]
        services = await self._setting.calls.list(SERVICE, namespace)
        self._services = {
            each["metadata"]["name"]: each["spec"]["clusterIP"]
            for each in services
            if each["spec"].get("clusterIP")
        }
        for kind, name in environment.references(self._pod()):
            found = await self._setting.calls.find(
                CONFIG_MAP if kind == "ConfigMap" else SECRET, namespace, name
            )
            self._data[kind, name] = None if found is None else data_of(kind, found)

    def _write_files(self) -> None:
        if self._volumes is None:
            self._volumes = Volumes(self._root, self._pod(), self._setting.claims, self._addressed)
            self._volumes.make()
            self._write_kubeconfig()
        self._volumes.write(self._with_address(), self._look_up)

    def _look_up(self, kind: str, name: str) -> Mapping[str, str] | None:
        return self._data.get((kind, name))

    def _with_address(self) -> Object:
        pod, ip = self._pod(), self._place.ip
        host = self._setting.network.host_ip
        status = {**(pod.get("status") or {}), "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": host}
        return {**pod, "status": status}

    def remove(self) -> None:
        """Remove the files; logs stay."""
        if self._volumes is not None:
            self._volumes.remove()

    # ------------------------------------------------------------ containers

    async def start_of(self, container: Object) -> Start:
        """See `Maker.start_of`."""
        image = self._setting.images.find(container["image"])
        if image is None:
            raise Unmakeable("ErrImagePull", f"there is no image {container['image']}")
        await self.refresh()
        pod, volumes = self._with_address(), self._volumes
        assert volumes is not None
        given = {**os_variables(self._root), **image.environment, **self._own_variables(pod)}
        given |= self._devices_of(container)
        found = environment.variables_of(pod, container, given, self._look_up)
        variables = {name: volumes.translated(value, container) for name, value in found.items()}
        words = image.words(*(self._words(container, key, variables) for key in ("command", "args")))
        if not words:
            raise Unmakeable("CreateContainerError", "no command specified")
        directory = Path(volumes.translated(container.get("workingDir") or str(self._root), container))
        return Start(
            words=words,
            environment=variables,
            directory=directory,
            before=self._place.before,
            host_name=pod["spec"].get("hostname") or pod["metadata"]["name"],
        )

    def _own_variables(self, pod: Object) -> dict[str, str]:
        given = {"HOSTNAME": pod["metadata"]["name"]}
        if self._kubeconfig() is not None:
            given["KUBECONFIG"] = str(self._root / "kubeconfig")
        return given

    def _kubeconfig(self) -> Path | None:
        spec = self._pod()["spec"]
        if spec.get("automountServiceAccountToken") is False:
            return None
        return self._setting.accounts.get(spec.get("serviceAccountName", ""), self._setting.kubeconfig)

    def _write_kubeconfig(self) -> None:
        """Write how the pod reaches the API server; its own namespace is the one that counts there."""
        path = self._kubeconfig()
        if path is None:
            return
        body = YAML(typ="safe").load(path)
        for each in body["contexts"]:
            each["context"]["namespace"] = self._pod()["metadata"]["namespace"]
        (self._root / "kubeconfig").write_text(json.dumps(body))

    def _devices_of(self, container: Object) -> dict[str, str]:
        gpus = self._gpus.get(container["name"], ())
        return {"NVIDIA_VISIBLE_DEVICES": ",".join(gpus) or "void"}

    def _words(self, container: Object, key: str, variables: Mapping[str, str]) -> Sequence[str]:
        assert self._volumes is not None
        filled = environment.filled(container.get(key) or (), variables)
        return [self._volumes.translated(word, container) for word in filled]

    def log_of(self, container: Object, restarts: int) -> Path:
        """See `Maker.log_of`."""
        metadata = self._pod()["metadata"]
        folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        return self._setting.logs / folder / container["name"] / f"{restarts}.log"

    def asking_of(self, container: Object, start: Start) -> probes.Asking:
        """See `Maker.asking_of`."""
        volumes = self._volumes
        assert volumes is not None

        async def run(words: Sequence[str]) -> int:
            translated = [volumes.translated(word, container) for word in words]
            return await probes.run_command(
                [*start.before, *translated], start.environment, str(start.directory)
            )

        return probes.Asking(ip=self._place.ip, ports=ports_of(container), run=run)


def os_variables(root: Path) -> dict[str, str]:
    """Variables of every container, whatever its image."""
    return {
        "PATH": os.defpath,
        "HOME": str(root),
        "TMPDIR": str(root),
        "LANG": "C.UTF-8",
    }
