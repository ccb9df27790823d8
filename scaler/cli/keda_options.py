"""Options of processes that answer KEDA."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from scaler.errors import UserError
from scaler.keda.settings import KedaSettings, TlsFiles
from scaler.runtime.sockets import Door

_HOST: Final = "127.0.0.1"
KedaPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65_535,
        help="Port on which KEDA is answered; 0 takes a free one (default: it isn't). The manifests name 6000.",
        show_default=False,
    ),
]
KedaHost = Annotated[
    str | None,
    typer.Option(help=f"Address of that port (default: {_HOST}).", show_default=False),
]
KedaTls = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with tls.crt and tls.key for that port, as a Secret is mounted; with ca.crt in it when"
        " the process starts, clients need certificates of it. Replaced files are taken while it runs (default: plaintext).",
        show_default=False,
    ),
]
KedaStreamsSpecs = Annotated[
    bool, typer.Option("--keda-streams-specs", help="Answer StreamMetricSpec, for operators from 2.21 on.")
]


@dataclass(frozen=True, slots=True)
class KedaFlags:
    """What the options said."""

    port: int | None
    host: str | None
    tls: Path | None
    streams_specs: bool

    def settings(self) -> KedaSettings | None:
        """Return how the server listens; None where it doesn't.

        Raises:
            UserError: something is said of a port that isn't, or there is no folder with certificates.
        """
        if self.port is None:
            if self.host is not None or self.tls is not None or self.streams_specs:
                raise UserError(
                    "--keda-host, --keda-tls and --keda-streams-specs are for --keda-port",
                    hint="add --keda-port 6000",
                )
            return None
        return KedaSettings(
            host=_HOST if self.host is None else self.host,
            port=self.port,
            tls=_files(self.tls),
            streams_specs=self.streams_specs,
        )


def keda_doors(settings: KedaSettings | None) -> list[Door]:
    """Return where KEDA is answered, to be compared with a command's other listeners."""
    return [] if settings is None else [Door(settings.host, settings.port, "--keda-port")]


def _files(folder: Path | None) -> TlsFiles | None:
    if folder is None:
        return None
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "doesn't exist"
        raise UserError(f"--keda-tls {folder} {what}", hint="a folder with tls.crt and tls.key is wanted")
    client_ca = folder / "ca.crt"
    there = os.path.lexists(client_ca)  # a link that leads nowhere is meant to be read, and fails
    return TlsFiles(
        certificate=folder / "tls.crt",
        key=folder / "tls.key",
        client_ca=client_ca if there else None,
        late_client_ca=None if there else client_ca,
    )
