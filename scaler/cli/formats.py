"""All file formats that people write, with the files that are generated from their models.

    python -m scaler.cli.formats            # writes policies/schema/emberpool.schema.json, policies/README.md and more
    python -m scaler.cli.formats --check    # says which of them is out of date

Policies and drills know nothing of each other's formats, so it is here, above both, that they come together.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from scaler.cli.failures import FAILED, OK
from scaler.cli.output import note
from scaler.drill.scenario import Scenario
from scaler.policy import reference
from scaler.policy.base import Envelope
from scaler.policy.compile import KINDS
from scaler.policy.schema import FILE_NAME, schema_of_all

FORMATS: Final[Mapping[str, type[Envelope]]] = MappingProxyType({**KINDS, "DrillScenario": Scenario})
"""The models of all kinds of documents, by kind."""

POLICIES: Final = Path(__file__).parents[2] / "policies"
"""Where the generated files stand, in a checkout of the repository."""


_EXAMPLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Fleet": "reference/fleet.yaml",
        "ScalingPolicy": "reference/scaling-policy.yaml",
        "Controller": "controller.yaml",
        "XidTable": "xid-table.yaml",
        "DrillScenario": "reference/drill-scenario.yaml",
    }
)
_SHARED_FLEET: Final = "shared-spares.yaml"


def generated() -> dict[Path, str]:
    """Return what the generated files should hold, by path.

    Raises:
        OSError: an example can't be read.
    """
    schema = schema_of_all(FORMATS)
    material = reference.Material(
        files={name: _text(name) for name in _names("*.yaml", "drills/*.yaml")},
        examples={kind: _text(name) for kind, name in _EXAMPLES.items()},
        shared_fleet=_text(_SHARED_FLEET),
    )
    return {
        POLICIES / "schema" / FILE_NAME: as_file(schema),
        **{POLICIES / path: text for path, text in reference.pages(schema, material).items()},
    }


def example_file(kind: str) -> Path:
    """Return the file with the example of a kind."""
    return POLICIES / _EXAMPLES[kind]


def _names(*patterns: str) -> list[str]:
    return [
        str(path.relative_to(POLICIES)) for pattern in patterns for path in sorted(POLICIES.glob(pattern))
    ]


def _text(name: str) -> str:
    return (POLICIES / name).read_text("utf-8")


def as_file(schema: Mapping[str, object]) -> str:
    """Return the text of a schema's file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or check that they are fresh."""
    parser = argparse.ArgumentParser(
        prog="python -m scaler.cli.formats", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    check = parser.parse_args(arguments).check
    stale = {path: text for path, text in generated().items() if not _holds(path, text)}
    for path, text in stale.items():
        if check:
            note(f"{path} is out of date: run make generate")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
            note(f"wrote {path}")
    return FAILED if check and stale else OK


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
