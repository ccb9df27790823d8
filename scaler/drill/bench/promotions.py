"""Promotions through the whole product: a request to a model that rests, until its first token.

`python -m scaler.drill.bench.promotions OUT --depth Paused --count 200`

`emberpool local` runs with a few seats that share one device. One request after the other goes to the gateway, to a model
of which nothing serves; the gateway tells the controller, which claims the seat and has the resident promoted, and the
gateway sends the request there. The next request is sent while nothing else is promoted or demoted. Residents return to
their rest by the policies' own windows, so that the seats take turns.

Every answer is compared with that of an engine that was never paused, and each model has prompts of its own.
"""

import asyncio
import json
import math
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from scaler.drill.bench.checkpoint import CACHE, made
from scaler.drill.bench.layout import Layout
from scaler.drill.bench.machine import machine
from scaler.drill.bench.orders import Orders
from scaler.drill.bench.parts import (
    SAMPLE_TO_TOKEN,
    Asked,
    Demoted,
    Promotion,
    joined,
    summarized,
    table,
)
from scaler.drill.bench.sound import (
    BLOCK,
    EngineShape,
    NotSound,
    kv_bytes_of_a_token,
    length_in,
    prompts,
    sound_answers,
)
from scaler.drill.bench.turns import TOKENS, Plan, Turns
from scaler.drill.bench.waiting import NotSo
from scaler.drill.checkpoints import CheckpointFailed
from scaler.drill.child import Child, ChildFailed, Endpoints, running
from scaler.drill.collect import Event, Evidence, promotions, read_events
from scaler.drill.interruptible import first, run
from scaler.drill.scenario import Shape
from warmpool.states import Depth

TARGET_MILLISECONDS: Mapping[Depth, float] = {
    Depth.PAUSED: 100.0,
    Depth.KV_RELEASED: 100.0,
    Depth.PARKED: 600.0,
}
"""Sample to first token, p99, on one H200 with an 8B shape."""
TARGET_SPREAD = 2.0
"""p99 over p50."""
_PROMPTS = 4
_SEQUENCES = 32
_READY_SECONDS = 300.0
_USUAL: Mapping[Depth, tuple[int, int, float]] = {
    Depth.PAUSED: (4, 1, 12.0),
    Depth.KV_RELEASED: (2, 2, 30.0),
    Depth.PARKED: (2, 2, 30.0),
}
"""Per depth: seats, residents of each, KV memory of the one that serves, in 10^9 bytes: what an 8B shape and 141 GB leave room for."""
_COPY_SPARE_BYTES = 64 << 20
"""A copy in host memory is as large as the weights, each tensor aligned and the whole in huge pages: a little more than the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What came of it.

    Attributes:
        promotions: all that were begun.
        ready_seconds: from the start of `emberpool local` until it served.
        seconds: from the first promotion to the last.
        trouble: why no further one could be begun; empty otherwise.
        left: processes that had to be killed at the end.
    """

    promotions: list[Promotion]
    ready_seconds: float
    seconds: float
    trouble: str
    left: list[str]

    @property
    def failures(self) -> list[str]:
        """What went wrong, in words."""
        failed = [each for each in self.promotions if each.failure]
        return [
            *(f"promotion {each.asked.number} of {each.asked.model}: {each.failure}" for each in failed),
            *([self.trouble] if self.trouble else []),
            *(f"left behind: {each}" for each in self.left),
        ]


async def measured(plan: Plan, out: Path) -> Outcomes:
    """Start everything, carry out the promotions, and end everything."""
    token = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory(prefix="emberpool-promotions-") as folder:
        state = Path(folder)
        policies = out / "policies.yaml"
        policies.write_text(plan.layout.documents(), "utf-8")
        command = ["env", f"EMBERPOOL_AGENT_TOKEN={token}", sys.executable, "-m", "scaler", "local"]
        command += plan.layout.options(plan.checkpoint, policies, state)
        begun = time.monotonic()
        try:
            async with running(command, state) as child:
                endpoints = await child.ready(_READY_SECONDS, lambda _: None, lambda _: None)
                ready_seconds = time.monotonic() - begun
                typer.echo(f"ready after {ready_seconds:.1f} s")
                working = time.monotonic()
                asked, trouble = await _promoted(plan, child, endpoints, token)
                seconds = time.monotonic() - working
        finally:
            _keep(state, out)
    events, _ = read_events(out / "events.jsonl")
    evidence = Evidence(events=events, zero=0.0, end=math.inf)
    return Outcomes(
        promotions=joined(asked, promotions(evidence), [_demoted(each) for each in evidence.of("demotion")]),
        ready_seconds=ready_seconds,
        seconds=seconds,
        trouble=trouble,
        left=child.left,
    )


def _keep(state: Path, out: Path) -> None:
    for name in ("events.jsonl", "local.log"):
        if (state / name).is_file():
            shutil.copyfile(state / name, out / name)


def _demoted(event: Event) -> Demoted:
    until = float(event["at"])
    return Demoted(since=until - sum((event.get("phases") or {}).values()), until=until)


async def _promoted(plan: Plan, child: Child, endpoints: Endpoints, token: str) -> tuple[list[Asked], str]:
    """Carry out the promotions as far as they can be, and return why not all; the child's death ends them."""
    begun = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=None)
    asked: list[Asked] = []
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        watching = group.create_task(child.watch())
        turns = Turns(plan, session, endpoints, Orders(session, token))
        trouble = ""
        try:
            while len(asked) < plan.count and time.monotonic() - begun < plan.seconds:
                asked.append(await turns.one(len(asked)))
        except NotSo as error:
            trouble = str(error)
        watching.cancel()
    return asked, trouble


# ------------------------------------------------------------------ command line


def _layout(
    depth: Depth, device: str, checkpoint: Path, sizes: tuple[int, int, float], prompt_tokens: int
) -> Layout:
    seats, residents, gigabytes = sizes
    least = -(-2 * (prompt_tokens + TOKENS) // BLOCK) * BLOCK
    length = max(least, length_in(gigabytes, _SEQUENCES, checkpoint, device))
    weights = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) + _COPY_SPARE_BYTES
    return Layout(
        depth=depth,
        seats=seats,
        residents=residents,
        device=device,
        sequences=_SEQUENCES,
        length=length,
        parked_bytes=residents * weights * (1 if device == "cuda" else 2) if depth is Depth.PARKED else 0,
    )


def main(  # noqa: PLR0913 (one parameter per command-line option)
    out: Annotated[Path, typer.Argument(help="Folder for promotions.json and what was recorded; created.")],
    *,
    depth: Annotated[Depth, typer.Option(help="How deep residents sleep.")] = Depth.PAUSED,
    count: Annotated[int, typer.Option(min=1, help="Promotions.")] = 200,
    shape: Annotated[Shape, typer.Option(help="Of the checkpoint that is made.")] = Shape.LLAMA_8B,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    seats: Annotated[int | None, typer.Option(min=1, help="Seats (default: by depth).")] = None,
    residents: Annotated[
        int | None, typer.Option(min=1, help="Residents of each (default: by depth).")
    ] = None,
    gigabytes: Annotated[
        float | None, typer.Option(min=0, help="KV memory of who serves, in 10^9 bytes (default: by depth).")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a prompt.")] = 128,
    checkpoints: Annotated[
        Path, typer.Option(metavar="DIR", help="Where checkpoints are kept; memory is best.")
    ] = CACHE,
    seconds: Annotated[float, typer.Option(min=1, help="No promotion begins later than this.")] = 400.0,
    seed: Annotated[int, typer.Option(min=0, help="Prompts and turns follow from it.")] = 1,
) -> None:
    """Print the parts of all promotions, and whether all tokens were right."""
    out.mkdir(parents=True, exist_ok=True)
    usual = _USUAL[depth]
    small = gigabytes is None and device == "cpu"
    sizes = (
        usual[0] if seats is None else seats,
        usual[1] if residents is None else residents,
        0.0 if small else usual[2] if gigabytes is None else gigabytes,
    )
    try:
        checkpoint = run(made(shape, checkpoints))
        layout = _layout(depth, device, checkpoint, sizes, prompt_tokens)
        drawn = prompts(len(layout.models) * _PROMPTS, prompt_tokens, seed)
        engine = EngineShape(checkpoint=checkpoint, device=device, sequences=_SEQUENCES, length=layout.length)
        answers = run(sound_answers(engine, drawn, TOKENS, out / "sound.log"))
        plan = Plan(
            layout=layout,
            checkpoint=checkpoint,
            asked=_dealt(layout.models, drawn),
            expected=_dealt(layout.models, answers),
            count=count,
            seconds=seconds,
            seed=seed,
        )
        kv = _SEQUENCES * layout.length * kv_bytes_of_a_token(checkpoint, device) / 1e9
        typer.echo(
            f"{depth}: {shape} on {device}, {layout.seats} seats of {layout.residents} residents,"
            f" {kv:.2f} GB of KV memory for who serves, prompts of {prompt_tokens} tokens"
        )
        outcomes = run(measured(plan, out))
    except* (NotSound, CheckpointFailed, ChildFailed) as failures:
        typer.echo(f"error: {first(failures)}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(_told(plan, outcomes, out))


def _dealt(models: Sequence[str], drawn: Sequence[list[int]]) -> dict[str, list[list[int]]]:
    return {model: list(drawn[turn * _PROMPTS : (turn + 1) * _PROMPTS]) for turn, model in enumerate(models)}


def _told(plan: Plan, outcomes: Outcomes, out: Path) -> int:
    """Print and keep what came of it; the exit code."""
    summary = summarized(outcomes.promotions)
    typer.echo("\n".join(table(summary)))
    done, failures = len(outcomes.promotions), outcomes.failures
    failed = sum(bool(each.failure) for each in outcomes.promotions)
    disturbed = sum(each.disturbed for each in outcomes.promotions)
    typer.echo(
        f"promotions: {done} of {plan.count} in {outcomes.seconds:.1f} s, {failed} failed;"
        f" {disturbed} while another seat was demoted"
    )
    for failure in failures[:10]:
        typer.echo(f"  {failure}")
    if (total := summary.get(SAMPLE_TO_TOKEN)) is not None:
        limit = TARGET_MILLISECONDS[plan.layout.depth]
        typer.echo(_verdict(f"{SAMPLE_TO_TOKEN}, p99 at most {limit:.0f} ms", total.p99, limit))
        typer.echo(
            _verdict(f"its spread p99/p50 at most {TARGET_SPREAD:.0f}", total.p99 / total.p50, TARGET_SPREAD)
        )
    kept = {
        "machine": machine(),
        "layout": {**asdict(plan.layout), "depth": str(plan.layout.depth)},
        "summary": {name: found.model_dump() for name, found in summary.items()},
        "readySeconds": outcomes.ready_seconds,
        "seconds": outcomes.seconds,
        "failures": failures,
        "promotions": [asdict(each) for each in outcomes.promotions],
    }
    (out / "promotions.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return 1 if failures or not outcomes.promotions else 0


def _verdict(what: str, measured_value: float, limit: float) -> str:
    return f"{what}: {'met' if measured_value <= limit else 'missed'} with {measured_value:.2f}"


if __name__ == "__main__":
    typer.run(main)
