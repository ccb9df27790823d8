"""One drill from its file to its verdict: arms one after another, everything cleaned up on every way out."""

import asyncio
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil
from rich.console import Console
from ruamel.yaml import YAML

from scaler.drill import cluster, collect, cpu, interruptible, measure
from scaler.drill.annotations import Grafana, annotating
from scaler.drill.arms import COMPARED, Arm, ArmName, make_arm
from scaler.drill.checkpoints import Maker, checkpoint_name, prepare
from scaler.drill.checks import checks, passed
from scaler.drill.child import Child, ChildFailed, Endpoints, running
from scaler.drill.collect import Evidence, Hit
from scaler.drill.cpu import CpuSample
from scaler.drill.faults import inject
from scaler.drill.figures import (
    ArmFigures,
    FitInfo,
    FleetInfo,
    HostInfo,
    PolicyInfo,
    Report,
    ScenarioInfo,
    StageInfo,
)
from scaler.drill.fit import Costs, announcement, fitted
from scaler.drill.gauge import GaugeFailed, gauge
from scaler.drill.load import Tally, Target, generate
from scaler.drill.loading import Loaded, load_scenario, with_shape
from scaler.drill.metrics import DrillMetrics, exposing
from scaler.drill.onlookers import Onlookers
from scaler.drill.ports import check_free
from scaler.drill.progress import Progress, View
from scaler.drill.report import Written, write_report, write_requests
from scaler.drill.scenario import Model
from scaler.drill.schedule import Request, StageWindow, schedule, windows
from scaler.drill.targets import Component, ScrapeTarget, listing
from scaler.drill.watch import Live, meter, poll
from scaler.errors import ScalerError, UserError
from scaler.policy.compile import PolicySet
from scaler.state_directory import state_directory
from warmpool.seats import PolicyName

_GAUGE: Final = "gauge"
"""What the state and the evidence of the child are called on which costs are measured."""


def _console() -> Console:
    """Where people look; a log has no width, and tables shouldn't be folded to 80 columns there."""
    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=150)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOptions:
    """What a drill is run with.

    Attributes:
        scenario: the scenario's file.
        arms: the arms, in the order in which they run.
        local_command: the command that starts `emberpool local`, without options.
        checkpoint_command: the command that makes a checkpoint from `--shape S --seed N DIR`.
        output: the report's folder; None for a new one under `.emberpool/drills`.
        checkpoint_cache: folder in which checkpoints are kept.
        checkpoints: per policy, a checkpoint to use instead of a made one.
        shape: shape of all checkpoints that are made; None for the scenario's.
        seed: seed of the load; None for the scenario's.
        fit: fit the load to this machine where the scenario asks for it.
        keep: keep the state directories of the arms.
        ready_seconds: how long the child may take until it serves.
        grafana: where annotations go; None for nowhere.
        metrics_port: port on which the drill's own metrics are scraped; 0 for any free one, None for none.
        controller_port: port of each arm's controller; 0 for any free one.
        targets_file: file that tells Prometheus what to scrape meanwhile; None for none.
        cluster: where a cluster answers that has the fleets already; None: `emberpool local` is started for each arm.
        console: where progress goes.
    """

    scenario: Path
    arms: tuple[ArmName, ...] = COMPARED
    local_command: Sequence[str] = (sys.executable, "-m", "scaler", "local")
    checkpoint_command: Sequence[str] = (sys.executable, "-m", "warmpool.reference", "make-checkpoint")
    output: Path | None = None
    checkpoint_cache: Path = Path(".emberpool/checkpoints")
    checkpoints: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    shape: str | None = None
    seed: int | None = None
    fit: bool = True
    keep: bool = False
    ready_seconds: float = 180.0
    grafana: Grafana | None = None
    metrics_port: int | None = None
    controller_port: int = 0
    targets_file: Path | None = None
    cluster: Endpoints | None = None
    console: Console = field(default_factory=_console)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """How a drill came out.

    Attributes:
        report: every figure.
        written: the report's files.
    """

    report: Report
    written: Written

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return self.report.passed

    @property
    def exit_code(self) -> int:
        """0 when every check passed, else 1."""
        return 0 if self.passed else 1


def run_drill(options: DrillOptions) -> DrillResult:
    """Run a drill to its end, from a program without an event loop; Ctrl-C and SIGTERM end it in order.

    Raises:
        PolicyError: the scenario or its policies can't be used (exit code 2).
        UserError: an option can't be used (exit code 2).
        ChildFailed: `emberpool local` died or didn't get ready (exit code 1).
        ClusterFailed: the cluster isn't warm (exit code 1).
        CheckpointFailed: a checkpoint can't be made (exit code 1).
        GaugeFailed: what a request costs can't be measured (exit code 1).
        KeyboardInterrupt: Ctrl-C; the child is gone (exit code 130).
        SystemExit: with code 143 after SIGTERM; the child is gone.
    """
    return interruptible.run(drill(options))


async def drill(options: DrillOptions) -> DrillResult:
    """Run a drill to its end. When it is cancelled, the child and its files are gone before it returns.

    Raises:
        PolicyError, UserError, ChildFailed, ClusterFailed, CheckpointFailed, GaugeFailed: as `run_drill`.
    """
    progress = Progress(options.console)
    local = options.cluster is None
    loaded = with_shape(load_scenario(options.scenario, local=local), options.shape)
    if not local:
        _check_for_cluster(options, loaded)
    name, spec, arms = loaded.scenario.metadata.name, loaded.scenario.spec, [str(arm) for arm in options.arms]
    metrics = DrillMetrics(name, arms, windows(spec), loaded.objectives)
    with listing(options.targets_file, progress.say) as targets:
        # emptied after the page has closed: that waits until the verdict has been scraped
        async with (
            exposing(metrics, options.metrics_port, progress.say) as page,
            annotating(options.grafana, name, progress.say) as annotations,
        ):
            check_free(options.controller_port, "--controller-port")
            if page is not None:
                targets.add(ScrapeTarget(url=page, component=Component.DRILL))
            onlookers = Onlookers(progress, metrics, annotations, targets)
            try:
                return await _play(options, loaded, onlookers)
            except (ScalerError, asyncio.CancelledError):
                onlookers.broken_off(name, arms, time.time())
                raise


def _check_for_cluster(options: DrillOptions, loaded: Loaded) -> None:
    """Refuse what can't be had of a cluster.

    Raises:
        UserError: another arm than warm, faults, or a load that is fitted to the machine.
    """
    if options.arms != (ArmName.WARM,):
        raise UserError(
            "a cluster is drilled as it is: there is no other arm than warm",
            hint="say --arm warm, or leave it out",
        )
    if loaded.scenario.spec.faults:
        raise UserError(
            f"{loaded.path} has faults, and a drill breaks nothing in a cluster",
            hint="leave spec.faults out; evict pods or drain nodes with kubectl while it runs",
        )
    if loaded.scenario.spec.fit is not None and options.fit:
        raise UserError(
            f"{loaded.path} fits its load to this machine, and the processors of a cluster aren't measured",
            hint="say --no-fit for answers as long as it says, or leave spec.fit out",
        )


async def _play(options: DrillOptions, loaded: Loaded, onlookers: Onlookers) -> DrillResult:
    """Play all arms and write the report."""
    started = time.time()
    spec, say = loaded.scenario.spec, onlookers.progress.say
    seed = spec.seed if options.seed is None else options.seed
    due = len(schedule(loaded.scenario, seed))
    say(
        f"drill {loaded.scenario.metadata.name}: {due} requests in {spec.seconds} s, "
        f"{', '.join(f'{arm} arm' for arm in options.arms)}"
    )
    maker = Maker(
        command=options.checkpoint_command, cache=options.checkpoint_cache, given=options.checkpoints
    )
    async with _output(options.output or _folder(loaded.scenario.metadata.name, started), say) as output:
        checkpoints = await prepare(spec.models, maker, say) if options.cluster is None else {}
        loaded, fit = await _fitted(options, loaded, checkpoints, onlookers, output)
        spec, requests = loaded.scenario.spec, schedule(loaded.scenario, seed)
        figures = []
        for name in options.arms:
            arm = make_arm(name, loaded.policies, spec.engine)
            figures.append(await _ArmRun(options, loaded, arm, checkpoints, onlookers).run(requests, output))
            onlookers.arm_ended(figures[-1])
        made = checks(spec.thresholds, figures, fit)
        report = Report(
            scenario=_scenario_info(loaded, seed),
            policies=[
                _policy_info(loaded.policies, model, maker.given, local=options.cluster is None)
                for model in spec.models
            ],
            host=_host_info(),
            fit=fit,
            started_at=started,
            arms=figures,
            checks=made,
            passed=passed(made),
        )
        onlookers.judged(report, time.time())
        written = await asyncio.to_thread(write_report, report, output)
    return DrillResult(report=report, written=written)


async def _fitted(
    options: DrillOptions,
    loaded: Loaded,
    checkpoints: Mapping[str, Path],
    onlookers: Onlookers,
    output: Path,
) -> tuple[Loaded, FitInfo | None]:
    """Fit the load to this machine, if that is asked for; all arms then play what is returned."""
    spec = loaded.scenario.spec
    if spec.fit is None or not options.fit:
        return loaded, None
    arm = make_arm(options.arms[0], loaded.policies, spec.engine)
    found = await _ArmRun(options, loaded, arm, checkpoints, onlookers).gauge(output)
    scenario, info = fitted(loaded.scenario, found, cpu.cores())
    onlookers.progress.say(announcement(info))
    return replace(loaded, scenario=scenario), info


class _ArmRun:
    """One arm: child up, load, child down, figures; or the load alone where a cluster is up already."""

    def __init__(
        self,
        options: DrillOptions,
        loaded: Loaded,
        arm: Arm,
        checkpoints: Mapping[str, Path],
        onlookers: Onlookers,
    ) -> None:
        self._options = options
        self._loaded = loaded
        self._arm = arm
        self._checkpoints = checkpoints
        self._onlookers = onlookers
        self._plan: list[StageWindow] = windows(loaded.scenario.spec)
        self._tally = Tally()
        self._evidence = Evidence()
        self._cpu: list[CpuSample] = []

    async def run(self, requests: Sequence[Request], output: Path) -> ArmFigures:
        """Play the schedule once and return what it came to; evidence is copied to `output`."""
        if (endpoints := self._options.cluster) is not None:
            start_seconds, left = await self._on_cluster(requests, endpoints, output), list[str]()
        else:
            start_seconds, left = await self._on_this_machine(requests, output)
        await asyncio.to_thread(
            write_requests, self._tally.records, output / f"requests-{self._arm.name}.jsonl"
        )
        return self._figures(start_seconds, left)

    async def _on_cluster(self, requests: Sequence[Request], endpoints: Endpoints, output: Path) -> float:
        """Play the schedule on a cluster; return how long it was waited for."""
        arm, begun = self._arm.name, time.monotonic()
        policies = list(self._loaded.objectives)
        async with self._onlookers.progress.waiting(arm, f"waiting for {endpoints.controller}") as waiting:
            await cluster.ready(endpoints, policies, self._options.ready_seconds, waiting)
        waited = time.monotonic() - begun
        self._onlookers.child_listens(arm, endpoints.controller)
        records = cluster.Records(endpoints.controller)
        try:
            await self._load(requests, endpoints, lambda _: [records.follow()])
        finally:
            self._onlookers.child_ended(arm)
        await records.finish(self._evidence)
        await asyncio.to_thread(cluster.write_events, self._evidence, output / f"events-{arm}.jsonl")
        return waited

    async def _on_this_machine(self, requests: Sequence[Request], output: Path) -> tuple[float, list[str]]:
        """Play the schedule on a child; return how long its start took, and what it left running."""
        name, say = self._arm.name, self._onlookers.progress.say

        def listens(endpoints: Endpoints) -> None:
            self._onlookers.child_listens(name, endpoints.controller)

        with _state(name, keep=self._options.keep, say=say) as state:
            begun = time.monotonic()
            try:
                async with self._up(state, listens) as (child, endpoints):
                    start_seconds = time.monotonic() - begun
                    say(f"{name} arm: ready after {start_seconds:.1f} s")
                    await self._load(
                        requests,
                        endpoints,
                        lambda live: [child.watch(), meter(child.tree, self._tally, self._cpu, live)],
                    )
            finally:
                self._onlookers.child_ended(name)
                await asyncio.to_thread(_keep_evidence, state, output, name)
            await asyncio.to_thread(self._read_events, state)
        return start_seconds, child.left

    async def gauge(self, output: Path) -> Costs:
        """Measure what a request costs, on a child of its own: an arm's law must not have seen requests before its load.

        Raises:
            GaugeFailed: it can't be measured.
        """
        name, progress = self._arm.name, self._onlookers.progress
        with _state(_GAUGE, keep=self._options.keep, say=progress.say) as state:
            try:
                async with (
                    self._up(state, lambda _: None) as (child, endpoints),
                    progress.waiting(name, "measuring what a request costs here"),
                ):
                    return await self._gauge(child, endpoints)
            finally:
                await asyncio.to_thread(_keep_evidence, state, output, _GAUGE)

    async def _gauge(self, child: Child, endpoints: Endpoints) -> Costs:
        meter_ = await asyncio.to_thread(cpu.CpuMeter, child.tree)
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(child.watch())
                found = await gauge(self._loaded.scenario, self._target(endpoints), meter_)
                watching.cancel()
        except* (ChildFailed, GaugeFailed) as failures:
            raise interruptible.first(failures) from None
        return found

    @asynccontextmanager
    async def _up(
        self, state: Path, listens: Callable[[Endpoints], None]
    ) -> AsyncIterator[tuple[Child, Endpoints]]:
        """Have a child of this arm running and ready while the context is open."""
        policies = state / "policies.yaml"
        await asyncio.to_thread(write_policies, self._arm.policies, policies)
        async with running(self._command(policies, state), state) as child:
            async with self._onlookers.progress.waiting(self._arm.name) as waiting:
                endpoints = await child.ready(self._options.ready_seconds, waiting, listens)
            yield child, endpoints

    def _target(self, endpoints: Endpoints) -> Target:
        spec, policies = self._loaded.scenario.spec, self._arm.policies.policies
        names = {model.policy: policies[PolicyName(model.policy)].models[0] for model in spec.models}
        return Target(gateway=endpoints.gateway, models=names, timeout=float(spec.request_timeout_seconds))

    async def _load(
        self,
        requests: Sequence[Request],
        endpoints: Endpoints,
        also: Callable[[Live], Sequence[Coroutine[Any, Any, None]]],
    ) -> None:
        """Play the schedule.

        Args:
            requests: what is sent.
            endpoints: where to.
            also: makes what else runs meanwhile, and is cancelled at the end.
        """
        spec, target = self._loaded.scenario.spec, self._target(endpoints)
        live = Live()

        def hit(found: Hit) -> None:
            self._evidence.hits.append(found)
            self._onlookers.hit(view, found)

        view = View(
            arm=self._arm.name,
            plan=self._plan,
            objectives=self._loaded.objectives,
            tally=self._tally,
            live=live,
        )
        self._tally.begin()
        try:
            async with self._onlookers.watching(view), asyncio.TaskGroup() as group:
                beside = [
                    *map(group.create_task, also(live)),
                    group.create_task(poll(endpoints.controller, self._tally, self._evidence, live)),
                    group.create_task(self._onlookers.show(view)),
                    group.create_task(self._onlookers.follow_stages(view)),
                    group.create_task(inject(spec.faults, endpoints.controller, self._tally, hit)),
                ]
                await generate(requests, target, self._tally)
                # the load is the whole scenario: a quiet end counts as much as its requests
                await asyncio.sleep(max(0.0, self._plan[-1].end - self._tally.now()))
                for task in beside:
                    task.cancel()
        except* ChildFailed as failures:
            raise interruptible.first(failures) from None
        self._evidence.zero = self._tally.started
        self._evidence.end = self._tally.now()

    def _command(self, policies: Path, state: Path) -> list[str]:
        command = [*self._options.local_command, "--policy", str(policies)]
        for policy, directory in self._checkpoints.items():
            command += ["--checkpoint", f"{policy}={directory}"]
        command += ["--state-dir", str(state), "--gateway-port", "0"]
        command += ["--controller-port", str(self._options.controller_port)]
        machine = self._loaded.scenario.spec.machine
        command += ["--device", machine.device.lower(), "--seats-per-gpu", str(machine.seats_per_gpu)]
        command += ["--zygote" if self._arm.zygote else "--no-zygote"]
        if self._arm.seat_budget is not None:
            command += ["--seat-budget", str(self._arm.seat_budget)]
        return command

    def _read_events(self, state: Path) -> None:
        self._evidence.events, self._evidence.unreadable = collect.read_events(state / "events.jsonl")

    def _figures(self, start_seconds: float, left: list[str]) -> ArmFigures:
        records, objectives, evidence = self._tally.records, self._loaded.objectives, self._evidence
        promotions = collect.promotions(evidence)
        bands = collect.seat_bands(evidence)
        return ArmFigures(
            arm=self._arm.name,
            seat_budget=self._arm.seat_budget,
            fleets=_fleet_infos(self._arm.policies),
            start_seconds=round(start_seconds, 1),
            load_started_at=evidence.zero,
            load_seconds=round(evidence.end, 1),
            stages=measure.stage_figures(records, self._tally.gaps, self._plan, objectives),
            bursts=measure.burst_figures(records, self._plan, objectives, promotions),
            burst_ttft=measure.burst_ttft(records, self._plan),
            promotions=promotions,
            promotion_summary=collect.summarize(promotions),
            demotions=collect.demotions(evidence),
            seat_seconds=collect.seat_seconds(bands),
            served_seconds=collect.served_seconds(bands),
            seats=bands,
            load=collect.load_curves(evidence, objectives),
            requests=measure.request_points(records),
            cpu=cpu.stage_cpu(self._cpu, self._plan),
            generator=measure.generator_figures(records),
            faults=collect.fault_figures(evidence),
            scaled_down_serving=None
            if self._options.cluster is None
            else collect.scaled_down_serving(evidence),
            failure_examples=measure.failure_examples(records),
            left_processes=left,
        )


@asynccontextmanager
async def _output(folder: Path, say: Callable[[str], None]) -> AsyncIterator[Path]:
    """The report's folder; a drill that is broken off leaves none, unless it was there before."""
    new = not await asyncio.to_thread(folder.exists)
    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(_touch, folder)
    except OSError as error:
        message = f"the report can't be written to {folder}: {error.strerror or error}"
        raise UserError(message, hint="name another folder with --out DIR") from error
    try:
        yield folder
    except asyncio.CancelledError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except (ChildFailed, GaugeFailed):
        say(f"what was recorded until then is kept in {folder}")
        raise
    except ScalerError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _touch(folder: Path) -> None:
    """Find out now, not after the load, whether files can be written."""
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _state(arm: str, *, keep: bool, say: Callable[[str], None]) -> Iterator[Path]:
    """A temporary folder for the child's state; gone afterwards unless it is to be kept."""
    # not in a thread: a cancelled drill must not leave before its files are gone
    with state_directory(f"drill-{arm}", say, keep=keep) as state:
        try:
            yield state
        finally:
            if keep:
                say(f"{arm} arm: state kept in {state}")


def _keep_evidence(state: Path, output: Path, arm: str) -> None:
    """Copy what the report rests on out of a state directory that is about to go."""
    for name in ("events.jsonl", "decisions.jsonl", "local.log", "policies.yaml"):
        if (state / name).is_file():
            stem, dot, suffix = name.partition(".")
            shutil.copyfile(state / name, output / f"{stem}-{arm}{dot}{suffix}")


def write_policies(policies: PolicySet, path: Path) -> None:
    """Write a policy set as the YAML that it could have come from."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    objects = [*policies.fleets.values(), *policies.policies.values()]
    documents = [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in objects]
    with path.open("w", encoding="utf-8") as file:
        yaml.dump_all(documents, file)


def _folder(name: str, started: float) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    return Path(".emberpool/drills") / f"{name}-{stamp}"


# ------------------------------------------------------------------ what the report says of the settings


def _scenario_info(loaded: Loaded, seed: int) -> ScenarioInfo:
    scenario = loaded.scenario
    return ScenarioInfo(
        name=scenario.metadata.name,
        description=scenario.metadata.description,
        seed=seed,
        seconds=float(scenario.spec.seconds),
        stages=[
            StageInfo(
                name=window.stage.name,
                kind=window.stage.kind,
                start=window.start,
                end=window.end,
                rates=window.rates,
                bursting=list(window.bursting),
            )
            for window in windows(scenario.spec)
        ],
        engine=scenario.spec.engine.model_dump(by_alias=True),
    )


def _policy_info(policies: PolicySet, model: Model, given: Mapping[str, Path], *, local: bool) -> PolicyInfo:
    spec = policies.policy_specs[PolicyName(model.policy)]
    own = given.get(model.policy)
    made = "" if not local else checkpoint_name(model)  # a cluster serves what it has
    return PolicyInfo(
        name=model.policy,
        shape=model.shape if local and own is None else None,
        checkpoint=made if own is None else own.resolve().name,
        objective_milliseconds=spec.ttft_objective * 1000,
        target_in_flight={share.fleet: share.target_in_flight for share in spec.fleets},
        serving_min=spec.serving_min,
        serving_max=spec.serving_max,
        burst_window_seconds=spec.burst.window,
        stable_window_seconds=spec.burst.stable_window,
        demote_after_seconds=spec.burst.demote_after,
        threshold_percent=round(spec.burst.threshold * 100),
    )


def _fleet_infos(policies: PolicySet) -> list[FleetInfo]:
    return [
        FleetInfo(
            name=spec.name,
            max_seats=spec.max_seats,
            spare_min=spec.spare_target,
            scale_down_window_seconds=spec.scale_down.window,
        )
        for spec in policies.fleet_specs.values()
    ]


def _host_info() -> HostInfo:
    return HostInfo(
        cores=cpu.cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )
