"""Volumes of a pod as folders, and paths inside containers as paths on this machine.

Containers share this machine's files: there is no mount. So wherever a path below a mount is named - in commands, variables,
probes and files of ConfigMaps, Secrets and the downward API - the folder's own path is put there: of the container that it is for,
since another may have something else at that path. Where pods share the network as well, addresses are treated the same way.
"""

import base64
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.fakes.kubelet.environment import Lookup, Unmakeable, field_of, resource_of

Object = Mapping[str, Any]
_FAILED = "CreateContainerConfigError"


class Volumes:
    """The folders of one pod.

    Args:
        root: where they are made; short, for the sockets in them may have no long names.
        pod: the pod.
        claims: folders that stand for PersistentVolumeClaims.
        addresses: puts addresses where text names them otherwise.
    """

    def __init__(
        self, root: Path, pod: Object, claims: Mapping[str, Path], addresses: Callable[[str], str]
    ) -> None:
        self._root = root
        self._addresses = addresses
        self._claims = claims
        self._spec = pod["spec"]
        self._places = {volume["name"]: self._place(volume) for volume in self._spec.get("volumes") or ()}
        self._mounts = {container["name"]: self._mounted(container) for container in self._containers}

    @property
    def _containers(self) -> list[Object]:
        return [*(self._spec.get("initContainers") or ()), *self._spec["containers"]]

    def _place(self, volume: Object) -> Path:
        if host := volume.get("hostPath"):
            return Path(host["path"])
        if claim := volume.get("persistentVolumeClaim"):
            name = claim["claimName"]
            if name not in self._claims:
                raise Unmakeable(_FAILED, f'persistentvolumeclaim "{name}" not found')
            return self._claims[name]
        return self._root / volume["name"]

    def _mounted(self, container: Object) -> dict[str, Path]:
        return {
            mount["mountPath"].rstrip("/"): self._places[mount["name"]] / mount.get("subPath", "")
            for mount in container.get("volumeMounts") or ()
        }

    def translated(self, text: str, container: Object) -> str:
        """Put this machine's paths in the place of paths below a container's mounts, and the pod's address where it means its own."""
        return self._with_paths(text, self._mounts[container["name"]])

    def _with_paths(self, text: str, mounts: Mapping[str, Path]) -> str:
        text = self._addresses(text)
        if not mounts:
            return text
        inside = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        return re.sub(rf"(?<![\w./-])({inside})(?![\w.-])", lambda found: str(mounts[found.group(1)]), text)

    def make(self) -> None:
        """Make the empty folders, and those below that are mounted by themselves."""
        self._root.mkdir(parents=True, exist_ok=True)
        for volume in self._spec.get("volumes") or ():
            if "emptyDir" in volume:
                self._places[volume["name"]].mkdir(exist_ok=True)
        for container in self._containers:
            for mount in container.get("volumeMounts") or ():
                if "subPath" in mount:
                    (self._places[mount["name"]] / mount["subPath"]).mkdir(parents=True, exist_ok=True)

    def write(self, pod: Object, look_up: Lookup) -> None:
        """Write what comes from objects; what has changed since is changed all at once, as a kubelet does.

        Raises:
            Unmakeable: an object isn't there.
        """
        for volume in self._spec.get("volumes") or ():
            sources = (volume.get("projected") or {}).get("sources") or [volume]
            files: dict[str, str] = {}
            for source in sources:
                files |= self._files(pod, source, look_up)
            files = {path: self._read_by(volume["name"], text) for path, text in files.items()}
            if files or {"configMap", "secret", "downwardAPI", "projected"} & volume.keys():
                _swap(self._places[volume["name"]], files)

    def _files(self, pod: Object, source: Object, look_up: Lookup) -> dict[str, str]:
        if items := source.get("downwardAPI"):
            return {item["path"]: self._downward(pod, item) for item in items.get("items") or ()}
        for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
            if found := source.get(key):
                return self._from_object(kind, found, look_up)
        return {}

    def _read_by(self, volume: str, text: str) -> str:
        """Return a file's text with paths as the first container has them that mounts its volume.

        Where it has nothing at a path that another has, that one is meant: an agent reads what engines are started with.
        """
        others = {path: place for mounts in self._mounts.values() for path, place in mounts.items()}
        for container in self._containers:
            if any(mount["name"] == volume for mount in container.get("volumeMounts") or ()):
                return self._with_paths(text, others | self._mounts[container["name"]])
        return text

    def _downward(self, pod: Object, item: Object) -> str:
        if "fieldRef" in item:
            return field_of(pod, item["fieldRef"]["fieldPath"])
        reference = item["resourceFieldRef"]
        named = next(each for each in self._containers if each["name"] == reference["containerName"])
        return resource_of(named, reference)

    def _from_object(self, kind: str, source: Object, look_up: Lookup) -> dict[str, str]:
        name = source.get("secretName") or source["name"]
        data = look_up(kind, name)
        if data is None:
            if source.get("optional"):
                return {}
            raise Unmakeable(_FAILED, f'{kind.lower()} "{name}" not found')
        items = source.get("items")
        chosen = {each["key"]: each["path"] for each in items} if items else {key: key for key in data}
        if missing := chosen.keys() - data.keys():
            raise Unmakeable(_FAILED, f"{kind} {name} has no key {min(missing)}")
        return {path: data[key] for key, path in chosen.items()}

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def _swap(place: Path, files: Mapping[str, str]) -> None:
    """Write files below a folder of a new name, and turn the link `..data` to it: readers see all old ones or all new ones."""
    place.mkdir(parents=True, exist_ok=True)
    link = place / "..data"
    before = link.resolve() if link.is_symlink() else None
    if before is not None and _read(before) == files:
        return
    made = place / f"..{uuid.uuid4().hex[:12]}"
    for name, text in files.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    made.mkdir(exist_ok=True)
    turned = place / "..data_tmp"
    turned.symlink_to(made.name)
    turned.replace(link)
    tops = {name.partition("/")[0] for name in files}
    for top in tops:
        if not (place / top).is_symlink():
            (place / top).symlink_to(os.path.join("..data", top))  # noqa: PTH118 - a relative link
    for gone in {each.name for each in place.iterdir() if not each.name.startswith("..")} - tops:
        (place / gone).unlink()
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def _read(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()
    }


def data_of(kind: str, body: Object) -> dict[str, str]:
    """Return the text of a ConfigMap's or Secret's keys."""
    data = body.get("data") or {}
    if kind == "ConfigMap":
        return dict(data)
    return {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in data.items()}
