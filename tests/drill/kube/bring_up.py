"""Fleets, controllers and a gateway on a cluster: seats as pods, the others as processes of this machine, as a user starts them."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from scaler.cluster.kube.resources import POD
from scaler.drill.checkpoints import Maker, prepare
from scaler.drill.scenario import Model, Shape
from scaler.errors import ScalerError
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles
from scaler.runtime.proofs import Served, expectations
from tests.drill.kube.ground import OWNER, Ground
from tests.fakes.kube_calls import BUDGET
from tests.fakes.ports import free_ports
from tests.fakes.workloads import SeatFleet, SeatResident, reference
from tests.integration.processes.rig import Processes
from warmpool.seats import FLEET_LABEL, SEAT_LABEL, SERVING_LABEL_PREFIX, PolicyName

WHOLE = Path(__file__).parent
"""Folder of the scenarios and the policies of the whole drill."""
_POLICIES = "policies.yaml"
_CACHE = Path(".emberpool/checkpoints")
_TOKENS_PER_SECOND = 25
_SEQUENCES = 4
_READY_SECONDS = 240.0
_POLL_SECONDS = 0.1
Body = dict[str, Any]


class NotThere(ScalerError):
    """Something that was waited for didn't come about."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is drilled, while it is up.

    Attributes:
        ground: the cluster.
        policies: the policies in force.
        gateway, controllers: base URLs.
        scenarios: folder of the scenarios, beside the policies in force.
    """

    ground: Ground
    policies: PolicySet
    gateway: str
    controllers: Sequence[str]
    scenarios: Path

    async def pods(self, **labels: str) -> list[Body]:
        """Return the pods of all fleets, or those with some labels."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items()) or FLEET_LABEL
        return await self.ground.calls.list(POD, self.ground.namespace, labelSelector=selector)

    async def serving(self, policy: str) -> list[Body]:
        """Return the pods in rotation for a policy."""
        return await self.ground.calls.list(
            POD, self.ground.namespace, labelSelector=f"{SERVING_LABEL_PREFIX}{policy}=true"
        )

    async def when_warm(self) -> None:
        """Wait until every spare is warm, and exactly as many seats serve as the policies' floors ask for.

        Raises:
            NotThere: they don't.
        """
        told = "an answer of the controller"
        floors = {name: policy.spec.serving.min for name, policy in self.policies.policies.items()}

        async def warm() -> bool:
            nonlocal told
            answer = await fetched(f"{self.controllers[0]}/v1/status")
            if answer is None or "ready" not in answer:
                return False
            if not answer["ready"]:
                told = ", ".join(answer["waitingFor"])
                return False
            serving = {name: len(await self.serving(name)) for name in floors}
            told = f"{floors} that serve; there are {serving}"
            return serving == floors

        await until(lambda: told, warm, _READY_SECONDS)


async def until(
    what: Callable[[], str], look: Callable[[], Awaitable[bool]], seconds: float, every: float = _POLL_SECONDS
) -> None:
    """Look again and again until something is so.

    Raises:
        NotThere: it isn't in time.
    """
    deadline = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > deadline:
            raise NotThere(f"after {seconds:.0f} s still waiting for {what()}")
        await asyncio.sleep(every)


async def fetched(url: str) -> Body | None:
    """Return the JSON at a URL; None where there is no answer."""
    timeout = aiohttp.ClientTimeout(total=5)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            body: Body = await response.json()
            return body
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


# ------------------------------------------------------------------ fleets


async def reference_residents(
    directory: Path, policies: PolicySet, tell: Callable[[str], None]
) -> dict[PolicyName, SeatResident]:
    """Make a resident of the reference engine for each policy, on a tiny checkpoint of its own."""
    models = [
        Model(policy=policy, shape=Shape.TINY, seed=seed, requests_per_minute=1)
        for seed, policy in enumerate(policies.policies, start=1)
    ]
    command = (sys.executable, "-m", "warmpool.reference", "make-checkpoint")
    found = await prepare(models, Maker(command=command, cache=_CACHE, given={}), tell)
    served = {
        PolicyName(policy): Served(directory=path, device="cpu", dtype="auto")
        for policy, path in found.items()
    }
    proofs = await expectations(served, directory, {}, tell)
    options = ("--max-num-seqs", str(_SEQUENCES), "--max-model-len", "128")
    options += ("--max-tokens-per-second", str(_TOKENS_PER_SECOND))
    return {
        name: reference(name, policy.spec.engine.port or 0, found[name], proofs[name], *options)
        for name, policy in policies.policies.items()
    }


def fleets_of(
    ground: Ground,
    policies: PolicySet,
    residents: Mapping[PolicyName, SeatResident],
    controllers: Sequence[str],
) -> list[SeatFleet]:
    """Return the fleets, each with its spares, or with one seat."""
    owner = ground.nodes[0].rpartition("-")[0]
    placed = {
        "nodeSelector": {OWNER: owner},
        "tolerations": [{"key": OWNER, "operator": "Equal", "value": owner, "effect": "NoSchedule"}],
    }
    return [
        SeatFleet(
            name=name,
            residents=[residents[policy] for policy in policies.policies_on(name)],
            namespace=ground.namespace,
            replicas=max(1, fleet.spec.spare.min),
            grace=30,
            drain=20.0,
            template=placed,
            settings={"controllers": list(controllers)},
        )
        for name, fleet in policies.fleets.items()
    ]


async def create_budgets(ground: Ground, policies: PolicySet) -> None:
    """Create the budgets that deploy/base has: one for each policy, and one for each fleet's spare seats."""
    budgets = {
        name: ({f"{SERVING_LABEL_PREFIX}{name}": "true"}, policy.spec.serving.min)
        for name, policy in policies.policies.items()
    }
    for name, fleet in policies.fleets.items():
        if least := fleet.spec.spare.min:
            budgets[PolicyName(f"{name}-spare")] = {FLEET_LABEL: name, SEAT_LABEL: "Spare"}, least - 1
    for name, (labels, least) in budgets.items():
        spec = {
            "minAvailable": least,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels},
        }
        await ground.calls.create(BUDGET, ground.namespace, {"metadata": {"name": name}, "spec": spec})


# ------------------------------------------------------------------ everything


@contextlib.asynccontextmanager
async def brought_up(
    directory: Path, ground: Ground, source: Path, tell: Callable[[str], None]
) -> AsyncIterator[Site]:
    """Bring everything up, and down again.

    Args:
        directory: for logs and state.
        ground: the cluster.
        source: folder of the policies and of the scenarios that name them.
        tell: called with what a person may want to know.
    """
    scenarios = directory / "scenarios"
    await asyncio.to_thread(_write_scenarios, source, scenarios, ground.namespace)
    policies = PolicyFiles((scenarios / _POLICIES,)).read().set
    residents = await reference_residents(directory, policies, tell)
    addresses = [
        await ground.network.virtual(f"{ground.namespace}/controller-{number}") for number in range(2)
    ]
    controllers = [f"http://{address}:9080" for address in addresses]
    for fleet in fleets_of(ground, policies, residents, controllers):
        await fleet.create(ground.calls)
    await create_budgets(ground, policies)
    async with Processes(directory) as processes:
        where = ["--kubernetes", "--namespace", ground.namespace, "--policy", str(scenarios / _POLICIES)]
        for number, address in enumerate(addresses):
            at = ["--host", address, "--port", "9080", "--state-dir", str(directory / f"controller-{number}")]
            await processes.emberpool(
                f"controller-{number}", "controller", *where, *at, "--kubeconfig", str(ground.controller)
            )
        port, metrics = free_ports(2)
        named = [word for url in controllers for word in ("--controller", url)]
        listening = ["--port", str(port), "--metrics-port", str(metrics), "--kubeconfig", str(ground.gateway)]
        await processes.emberpool("gateway", "gateway", *where, *named, *listening)
        site = Site(
            ground=ground,
            policies=policies,
            gateway=f"http://127.0.0.1:{port}",
            controllers=controllers,
            scenarios=scenarios,
        )
        begun = time.monotonic()
        await site.when_warm()
        tell(f"warm after {time.monotonic() - begun:.1f} s: {await _described(site)}")
        yield site


async def _described(site: Site) -> str:
    seats = (await fetched(f"{site.controllers[0]}/v1/seats") or {}).get("items", [])
    return ", ".join(sorted(f"{each['fleet']} {each['value']}" for each in seats))


def _write_scenarios(source: Path, folder: Path, namespace: str) -> None:
    folder.mkdir()
    for path in source.glob("*.yaml"):
        text = path.read_text().replace("namespace: emberpool-drill", f"namespace: {namespace}")
        (folder / path.name).write_text(text)


# ------------------------------------------------------------------ a drill


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """How a drill came out.

    Attributes:
        code: its exit code.
        report: its report.json; empty where there is none.
        printed: its tables and verdict.
        said: its progress.
    """

    code: int
    report: Body
    printed: str
    said: str


async def drill(
    site: Site, scenario: str, output: Path, beside: Callable[[], Awaitable[None]] | None = None
) -> Drilled:
    """Run `emberpool drill run` on the site.

    Args:
        site: what is drilled.
        scenario: name of a scenario's file, without its suffix.
        output: folder of the report.
        beside: runs while the load does, from the moment at which it has begun.
    """
    command = [sys.executable, "-m", "scaler", "drill", "run", str(site.scenarios / f"{scenario}.yaml")]
    command += ["--gateway", site.gateway, "--controller", site.controllers[0], "--out", str(output)]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    begun, said = asyncio.Event(), list[str]()
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(process.stdout.read())
            told = tasks.create_task(_listen(process.stderr, said, begun))
            if beside is not None:
                await begun.wait()
                await beside()
                if told.done():
                    raise NotThere("the load was over before what was done beside it")
            await told
            printed = (await reading).decode()
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    file = output / "report.json"
    report = json.loads(await asyncio.to_thread(file.read_text)) if file.exists() else {}
    return Drilled(code=code, report=report, printed=printed, said="".join(said))


async def _listen(stream: asyncio.StreamReader, said: list[str], begun: asyncio.Event) -> None:
    """Keep what a drill says; its first stage is told when the load begins."""
    try:
        async for line in stream:
            said.append(line.decode())
            if "warm arm:     0 s" in said[-1]:
                begun.set()
    finally:
        begun.set()
