"""docker-compose.yaml as Compose reads it, and its services as plain processes on this machine."""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.fakes.ports import free_ports
from tests.integration.processes.rig import Processes

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
Json = dict[str, Any]

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<how>:[-?])(?P<rest>[^}]*))?\}")


def load(path: Path = FILE) -> Json:
    """The file with anchors and merges resolved, variables as they stand."""
    data: Json = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    return data


def substituted(value: Any, variables: Mapping[str, str]) -> Any:
    """Replace variables as Compose does; one without a value and a default is an error."""

    def one(match: re.Match[str]) -> str:
        if given := variables.get(match["name"]):
            return given
        if match["how"] != ":-":
            raise KeyError(match["name"])
        return str(match["rest"])

    match value:
        case str():
            return _VARIABLE.sub(one, value)
        case list():
            return [substituted(each, variables) for each in value]
        case dict():
            return {key: substituted(each, variables) for key, each in value.items()}
    return value


def variables_of(text: str) -> list[re.Match[str]]:
    return list(_VARIABLE.finditer(text))


def entrypoint(service: Json, services: Json) -> list[str]:
    """What the container starts: the service's own entrypoint, or that of its image's Dockerfile, whichever service builds it."""
    if "entrypoint" in service:
        return list(service["entrypoint"])
    builder = next(
        each for each in services.values() if each["image"] == service["image"] and "build" in each
    )
    dockerfile = (ROOT / builder["build"]["dockerfile"]).read_text("utf-8")
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    return list(json.loads(line))


PROGRAMS = {"emberpool": [sys.executable, "-m", "scaler"], "python": [sys.executable]}
PORT_OPTIONS = {
    ("controller", 9080): "--port",
    ("gateway", 8000): "--port",
    ("gateway", 9082): "--metrics-port",
}
"""Options that move a service's default port; in containers the defaults do."""


@dataclass
class Here:
    """The services on this machine: container paths below a directory, service names as loopback ports."""

    directory: Path
    processes: Processes
    ports: dict[tuple[str, int], int]
    services: Json

    @classmethod
    def of(cls, directory: Path, processes: Processes) -> "Here":
        given = dict.fromkeys(
            ("EMBERPOOL_AGENT_TOKEN", "EMBERPOOL_SIGNAL_TOKEN", "GRAFANA_ADMIN_PASSWORD"), "secret"
        )
        file = substituted(load(), given)
        seats = [(name, 9081) for name in file["services"] if name.startswith("seat-")]
        places = [*PORT_OPTIONS, *seats]
        return cls(
            directory, processes, dict(zip(places, free_ports(len(places)), strict=True)), file["services"]
        )

    def url(self, service: str, port: int) -> str:
        return f"http://127.0.0.1:{self.ports[service, port]}"

    def path(self, volume: str) -> Path:
        return self.directory / "volumes" / volume

    def moved(self, text: str) -> str:
        """Service names become loopback ports."""
        for service, port in self.ports:
            text = text.replace(f"http://{service}:{port}", self.url(service, port))
        return text

    def mounts(self, service: str) -> dict[str, Path]:
        """Where each mounted container path lies on this machine; mounted files are copies with addresses moved."""
        places = {}
        for entry in self.services[service].get("volumes", []):
            source, target, *_ = entry.split(":")
            if not source.startswith("."):
                places[target] = self.path(source)
                places[target].mkdir(parents=True, exist_ok=True)
                continue
            places[target] = self.directory / "mounts" / service / Path(source).name
            places[target].parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, places[target], dirs_exist_ok=True)
                copies = [path for path in places[target].rglob("*.yaml") if path.is_file()]
            else:
                copies = [Path(shutil.copyfile(ROOT / source, places[target]))]
            for copy in copies:
                copy.write_text(self.moved(copy.read_text("utf-8")), "utf-8")
        return places

    def published(self, text: str) -> str:
        """Addresses at which services are published on the Docker host become loopback ports."""
        for service, container_port in PORT_OPTIONS:
            for entry in self.services[service]["ports"]:
                address, _, port = entry.rpartition(":")
                if int(port) == container_port:
                    text = text.replace(f"http://{address}", self.url(service, container_port))
        return text

    def command(self, service: str) -> list[str]:
        """The container's command line, for this machine."""
        program, *arguments = [
            *entrypoint(self.services[service], self.services),
            *self.services[service]["command"],
        ]
        for target, place in sorted(self.mounts(service).items(), key=lambda each: -len(each[0])):
            arguments = [re.sub(rf"(^|=){re.escape(target)}(?=/|$)", rf"\g<1>{place}", a) for a in arguments]
        options = [
            f"{flag}={self.ports[place]}" for place, flag in PORT_OPTIONS.items() if place[0] == service
        ]
        return [*PROGRAMS[program], *map(self.moved, arguments), *options]

    async def start(self, service: str) -> None:
        environment = self.services[service].get("environment", {})
        await self.processes.start(service, self.command(service), environment)
