# ruff: noqa: INP001 - a script that a container runs, no package
"""What the seats need before they start: checkpoints, what sound engines answer, and each agent's configuration.

Run once by the `prepare` service, or by hand where there is no Docker (README.md). Checkpoints and records that are there already stay; configurations are written anew.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from scaler.cluster.static.listing import ListedSeat, load_agents
from scaler.policy.compile import load_policies
from scaler.runtime.local_options import LocalOptions
from scaler.runtime.local_plan import make_plan, templates
from scaler.runtime.proofs import expectations
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.seats import FleetName

MAX_MODEL_LEN = 256


def main() -> None:
    """Prepare everything below `--data`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--agents", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--controller", required=True, help="base URL that agents report to")
    parser.add_argument("--host", default="127.0.0.1", help="address on which agents and engines listen")
    parser.add_argument("--shape", default="tiny", help="of the checkpoints' random weights")
    given = parser.parse_args()

    policies = load_policies([given.policy])
    checkpoints = {
        str(name): make_checkpoint(given.data / "checkpoints" / name, given.shape, seed=seed)
        for seed, name in enumerate(policies.policies, start=1)
    }
    options = LocalOptions(
        checkpoints=checkpoints, policies=(given.policy,), device="cpu", max_model_len=MAX_MODEL_LEN
    )
    plan = make_plan(options, ())
    proofs = asyncio.run(expectations(plan.served, given.data, {}, tell))
    seats = templates(options, plan, proofs, "")  # the token comes with each container's environment
    made = {each.fleet: each for each in seats}
    for fleet in load_agents(given.agents).spec.fleets:
        for number, seat in enumerate(fleet.seats):
            template = made[FleetName(fleet.name)]
            residents = list(template.residents)
            turn = number % len(residents)  # so that each model is warm somewhere early
            order = residents[turn:] + residents[:turn]
            others = {"host": given.host, "controllers": [given.controller], "residents": order}
            write(given.data, fleet.name, seat, {**template.settings, **others})


def tell(text: str) -> None:
    """Say on stderr what takes a while."""
    sys.stderr.write(text + "\n")


def write(data: Path, fleet: str, seat: ListedSeat, others: dict[str, object]) -> None:
    """Write one agent's configuration."""
    config = {
        "seat": seat.name,
        "fleet": fleet,
        "uid": f"{fleet}/{seat.name}",
        "port": urlsplit(seat.agent).port,
        "gpus": [],
        "logDirectory": str(data / "logs" / seat.name),
        "exclusive": True,
        **others,
    }
    path = data / "seats" / f"{seat.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
