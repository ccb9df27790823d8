"""Plan and claim drive a model world: agents that fail, engines that crash, seats that go, controllers that follow.

The world keeps a store with compare-and-swap, agents with one order at a time and fenced epochs, and reports that may
be late. Controllers, the leader and those that have not noticed that they no longer lead, plan from the reports and
carry each action out step by step, with everything else happening in between.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warmpool.claim import (
    Errand,
    Term,
    apply_claim,
    apply_settlement,
    holds,
    new_claim,
    orphaned,
    refusal,
    resolve_orphan,
)
from warmpool.plan import (
    Action,
    Demote,
    Limits,
    Park,
    Promote,
    Prove,
    Recall,
    Release,
    Replace,
    Resize,
    Switch,
    Unpark,
    Wants,
    plan,
)
from warmpool.seats import (
    DELETION_COST,
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
    seat_value,
)
from warmpool.states import COMPUTING, ResidentState, transition

S = ResidentState
F = FleetName("f")
POLICIES = [PolicyName(name) for name in "abc"]
CLAIM_SECONDS = 10.0
LIMITS = Limits(proof_interval_seconds=60.0, give_up_seconds=1e9)
OPERATIONS: dict[type[Action], Operation] = {
    Promote: Operation.PROMOTE,
    Recall: Operation.RECALL,
    Switch: Operation.SWITCH,
    Demote: Operation.DEMOTE,
    Release: Operation.DEMOTE,
    Prove: Operation.PROVE,
    Park: Operation.PARK,
    Unpark: Operation.UNPARK,
}
SeatWork = Promote | Recall | Switch | Demote | Release | Prove | Park | Unpark
ROOM = 2
"""Residents of a seat that its device memory holds."""
ASLEEP = {S.PARKED, S.PARKING, S.STARTING, S.FAILED, S.UNPARKING}
"""States without weights in device memory; what is being unparked gets its room at the end."""
BOOT = {
    S.FAILED: S.STARTING,
    S.STARTING: S.LOADING,
    S.LOADING: S.WARMING,
    S.WARMING: S.PROVING,
    S.PROVING: S.PAUSED,
}


anyone = st.integers(0, 11)
many_lives = st.lists(st.lists(st.sampled_from(POLICIES), min_size=1, unique=True), min_size=2, max_size=5)
all_wants = st.fixed_dictionaries({policy: st.sampled_from([0, 0, 1, 2, 3]) for policy in POLICIES})


class Refused(Exception):
    """A store or an agent said no, or didn't answer."""


@dataclass
class Agent:
    """One seat's agent with its engines: one order at a time, and none from a term that is over."""

    states: dict[PolicyName, ResidentState]
    parks: bool = False
    epoch: int = 0
    running: tuple[str, PolicyName, str] | None = None
    ended: dict[str, bool] = field(default_factory=dict)

    def move(self, policy: PolicyName, state: ResidentState) -> None:
        self.states[policy] = transition(self.states[policy], state)

    def computing(self) -> set[PolicyName]:
        return {policy for policy, state in self.states.items() if state in COMPUTING}

    def _admit(self, claim: Claim, policy: PolicyName) -> None:
        if claim.epoch < self.epoch:
            raise Refused("StaleEpoch")
        self.epoch = claim.epoch
        recall = self.running is not None and self.running[:2] == ("drain", policy)
        if self.running is not None and not (recall and claim.operation is Operation.RECALL):
            raise Refused("Busy")
        if self.computing() - {policy}:
            raise Refused("Busy: a neighbour computes")

    def resume(self, claim: Claim, policy: PolicyName) -> None:
        moves = {("park", policy), ("unpark", policy)}
        if claim.epoch >= self.epoch and self.running is not None and self.running[:2] in moves:
            self.end_order(good=True, crash=False)  # it is waited for
        self._admit(claim, policy)
        match self.states[policy]:
            case S.SERVING:
                self.ended[claim.id] = True
            case S.DRAINING:
                self.move(policy, S.SERVING)
                if self.running is not None:
                    self.ended[self.running[2]] = False
                    self.running = None
                self.ended[claim.id] = True
            case S.PAUSED:
                self.move(policy, S.PROMOTING)
                self.running = ("resume", policy, claim.id)
            case S.PARKED:
                self.make_room(claim)
                self.move(policy, S.UNPARKING)
                self.running = ("resume", policy, claim.id)
            case _:
                raise Refused("WrongState")

    def drain(self, claim: Claim, policy: PolicyName) -> None:
        self._admit(claim, policy)
        if self.states[policy] not in {S.SERVING, S.DRAINING}:
            raise Refused("WrongState")
        if self.states[policy] is S.SERVING:
            self.move(policy, S.DRAINING)
        self.running = ("drain", policy, claim.id)

    def pause(self, claim: Claim, policy: PolicyName) -> None:
        self._admit(claim, policy)
        if self.states[policy] is not S.DRAINING:
            raise Refused("WrongState")
        self.move(policy, S.PAUSED)

    def prove(self, claim: Claim, policy: PolicyName) -> None:
        self._admit(claim, policy)
        if self.states[policy] is not S.PAUSED:
            raise Refused("WrongState")
        self.move(policy, S.PROVING)
        self.running = ("prove", policy, claim.id)

    def make_room(self, claim: Claim) -> None:
        """Park whom the claim lets it park, until one more resident fits; refuse before anything is begun."""
        awake = [policy for policy, state in self.states.items() if state not in ASLEEP]
        offered = [p for p in claim.displace or () if self.states[p] is S.PAUSED]
        parked = offered[: max(0, len(awake) + 1 - ROOM)]
        if len(awake) - len(parked) >= ROOM:
            raise Refused("NoRoom")
        for policy in parked:
            self.move(policy, S.PARKING)
            self.move(policy, S.PARKED)

    def unpark(self, claim: Claim, policy: PolicyName) -> None:
        self._admit(claim, policy)
        if self.states[policy] is not S.PARKED:
            raise Refused("WrongState")
        self.make_room(claim)
        self.move(policy, S.UNPARKING)
        self.running = ("unpark", policy, claim.id)

    def park(self, claim: Claim, policy: PolicyName) -> None:
        self._admit(claim, policy)
        if self.states[policy] is not S.PAUSED:
            raise Refused("WrongState")
        self.move(policy, S.PARKING)
        self.running = ("park", policy, claim.id)

    def end_order(self, *, good: bool, crash: bool) -> None:
        """End the running order: well, undone, or with a dead engine."""
        if self.running is None:
            return
        kind, policy, claim_id = self.running
        self.running = None
        self.ended[claim_id] = good and not crash
        if crash:
            self.move(policy, S.FAILED)
        elif kind == "resume":
            if self.states[policy] is S.UNPARKING:
                self.move(policy, S.PAUSED)
                self.move(policy, S.PROMOTING)
            self.move(policy, S.SERVING if good else S.PAUSED)
        elif kind == "unpark":
            self.move(policy, S.PAUSED if good else S.PARKED)
        elif kind == "park":
            self.move(policy, S.PARKED if good else S.PAUSED)
        elif kind == "prove":
            self.move(policy, S.PAUSED if good else S.FAILED)

    def crash(self, policy: PolicyName) -> None:
        if self.running is not None and self.running[1] == policy:
            self.end_order(good=False, crash=True)
        elif self.states[policy] is not S.FAILED:
            self.move(policy, S.FAILED)

    def has_room(self) -> bool:
        return sum(state not in ASLEEP for state in self.states.values()) < ROOM

    def park_one(self) -> bool:
        """Park a paused resident so that another can start, on a seat with host memory."""
        for policy, state in self.states.items():
            if self.parks and state is S.PAUSED:
                self.move(policy, S.PARKING)
                self.move(policy, S.PARKED)
                return True
        return False

    def boot(self) -> bool:
        """Take the first engine that isn't up one step further; a computing step waits for the seat to be free."""
        if self.running is not None:
            return False
        for policy, state in self.states.items():
            following = BOOT.get(state)
            if following is not None:
                if following in COMPUTING and self.computing() - {policy}:
                    return False
                if following is S.LOADING and not self.has_room() and not self.park_one():
                    continue
                self.move(policy, following)
                return True
        return False


@dataclass
class Controller:
    """One process: its term, what it remembers, and what it is carrying out."""

    term: Term
    number: int = 0
    settled: dict[SeatName, float] = field(default_factory=dict)
    left_alone: set[tuple[SeatName, PolicyName]] = field(default_factory=set)
    work: list[Generator[None, None, None]] = field(default_factory=list)


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.made = self.removed = 0
        self.pods: dict[SeatName, Seat] = {}
        self.agents: dict[SeatName, Agent] = {}
        self.reports: dict[SeatName, tuple[Resident, ...]] = {}
        self.wanted = dict.fromkeys(POLICIES, 0)
        self.warm = dict.fromkeys(POLICIES, 0)
        self.total = 0
        self.replicas = 0
        self.leader = Controller(term=Term(holder="c1", epoch=1))
        self.former: list[Controller] = []

    # -------------------------------------------------------------- the cluster

    def make(self, lives: list[PolicyName]) -> None:
        self.made += 1
        name = SeatName(f"s{self.made}")
        self.pods[name] = Seat(
            name=name, uid=str(self.made), version="0", fleet=F, node=f"n{self.made % 2}", ready=True
        )
        self.agents[name] = Agent(states=dict.fromkeys(lives, S.STARTING), parks=self.made % 3 > 0)
        self.report(name)

    def remove(self, name: SeatName) -> None:
        self.removed += 1
        for part in (self.pods, self.agents, self.reports):
            del part[name]

    def report(self, name: SeatName) -> None:
        if self.pods[name].reachable:
            self.reports[name] = tuple(
                Resident(
                    policy=policy,
                    state=state,
                    since=self.now,
                    proven_at=self.now,
                    waiting="no room" if state is S.STARTING and not self.agents[name].has_room() else "",
                )
                for policy, state in self.agents[name].states.items()
            )

    def view(self, name: SeatName) -> Seat:
        return replace(self.pods[name], residents=self.reports[name])

    def view_all(self) -> list[Seat]:
        return [self.view(name) for name in self.pods]

    def write(self, seat: Seat) -> Seat:
        written = replace(seat, residents=(), version=str(int(seat.version) + 1))
        self.pods[seat.name] = written
        return written

    def put_claim(self, seen: Seat, claim: Claim) -> None:
        """Write a claim by compare-and-swap; the rules of taking over are checked once more, in other words."""
        pod = self.pods.get(seen.name)
        if (
            pod is None
            or pod.version != seen.version
            or refusal(self.view(seen.name), claim, self.now) is not None
        ):
            raise Refused("Conflict")
        held = pod.claim
        if held is not None and self.now < held.deadline and held.epoch >= claim.epoch:
            recalls = claim.operation is Operation.RECALL and held.operation is Operation.DEMOTE
            follows = claim.operation is Operation.PROMOTE and held.operation in {
                Operation.PARK,
                Operation.UNPARK,
            }
            assert (recalls or follows) and held.policy == claim.policy and held.epoch == claim.epoch, (  # noqa: PT018
                "claimed twice"
            )
        if claim.operation is not Operation.DEMOTE:
            assert pod.usable, "promotion on an unusable seat"
        self.write(apply_claim(pod, claim))

    def settle(
        self, controller: Controller, name: SeatName, claim: Claim, serving: PolicyName | None
    ) -> None:
        pod = self.pods.get(name)
        if pod is None or not holds(pod, claim):
            raise Refused("Conflict")
        self.write(apply_settlement(pod, claim, serving))
        controller.settled[name] = self.now

    def agent(self, name: SeatName) -> Agent:
        if name not in self.pods or not self.pods[name].reachable:
            raise Refused("Unreachable")
        return self.agents[name]

    # -------------------------------------------------------------- a controller

    def tick(self, controller: Controller) -> None:
        for seat in self.view_all():
            resolution = resolve_orphan(seat, self.now, controller.term.epoch)
            if resolution is not None:
                self.settle(controller, seat.name, resolution.claim, resolution.serving)
        wants = Wants(
            serving={F: self.wanted},
            order=POLICIES,
            totals={F: self.total},
            replicas={F: self.replicas},
            warm={F: self.warm},
        )
        seats = self.view_all()
        answer = plan(
            wants, seats, LIMITS, self.now, settled=controller.settled, left_alone=controller.left_alone
        )
        for action in answer.actions:
            if isinstance(action, SeatWork):
                controller.number += 1
                controller.work.append(self.carry_out(controller, action, controller.number))
            elif controller is self.leader:
                self.act_at_once(action, seats)

    def act_at_once(self, action: Action, seats: list[Seat]) -> None:
        match action:
            case Replace():
                self.remove(action.seat.name)
                self.make(POLICIES)
            case Resize(total=total):
                if total < self.replicas:
                    assert not any(str(seat_value(s)) == "Promoting" and s.usable for s in seats if s.claim)
                self.replicas = total
                self.follow_replicas()

    def follow_replicas(self) -> None:
        """Do what a workload's controller does: make what lacks, delete the cheapest of what is too many."""
        while sum(not pod.terminating for pod in self.pods.values()) < self.replicas:
            self.make(POLICIES)
        staying = [seat for seat in self.view_all() if not seat.terminating]
        staying.sort(key=lambda seat: DELETION_COST[seat_value(seat)])
        for seat in staying[: len(staying) - self.replicas]:
            self.remove(seat.name)

    def carry_out(self, controller: Controller, action: SeatWork, number: int) -> Generator[None, None, None]:
        leaving = action.leaving if isinstance(action, Switch) else None
        displace = action.displace if isinstance(action, Promote | Switch | Unpark) else None
        errand = Errand(
            operation=OPERATIONS[type(action)], policy=action.policy, leaving=leaving, displace=displace
        )
        claim = new_claim(errand, controller.term, number=number, now=self.now, seconds=CLAIM_SECONDS)
        name = action.seat.name
        try:
            self.put_claim(action.seat, claim)
        except Refused:
            return
        serving = None
        try:
            yield
            serving = yield from self.orders(action, name, claim)
        except Refused:
            if isinstance(action, Park | Unpark):
                controller.left_alone.add((name, action.policy))
        yield
        try:
            self.settle(controller, name, claim, serving)
        except Refused:
            return

    def orders(
        self, action: SeatWork, name: SeatName, claim: Claim
    ) -> Generator[None, None, PolicyName | None]:
        """Give the agent its orders; return who shall go into rotation."""
        match action:
            case Release():
                return None
            case Prove(policy=policy):
                self.agent(name).prove(claim, policy)
                yield from self.wait(name, claim)
                return None
            case Park(policy=policy):
                self.agent(name).park(claim, policy)
                yield from self.wait(name, claim)
                return None
            case Unpark(policy=policy):
                self.agent(name).unpark(claim, policy)
                yield from self.wait(name, claim)
                return None
            case Demote(policy=policy):
                yield from self.send_away(name, claim, policy)
                return None
            case Switch(leaving=leaving):
                yield from self.send_away(name, claim, leaving)
            case _:
                pass
        yield
        self.agent(name).resume(claim, action.policy)
        yield from self.wait(name, claim)
        return action.policy

    def send_away(self, name: SeatName, claim: Claim, policy: PolicyName) -> Generator[None, None, None]:
        self.agent(name).drain(claim, policy)
        yield from self.wait(name, claim)
        yield
        self.agent(name).pause(claim, policy)

    def wait(self, name: SeatName, claim: Claim) -> Generator[None, None, None]:
        """Wait for the agent to end the order; it does so by itself, with or without us."""
        while claim.id not in self.agent(name).ended:
            yield
        if not self.agent(name).ended.pop(claim.id):
            raise Refused("EngineFailed")

    @staticmethod
    def step(controller: Controller, which: int) -> None:
        if controller.work:
            position = which % len(controller.work)
            try:
                next(controller.work[position])
            except StopIteration:
                del controller.work[position]

    # -------------------------------------------------------------- what happens

    @initialize(lives=many_lives, wanted=all_wants, warm=all_wants, up=st.sampled_from([True, True, False]))
    def begin(
        self,
        lives: list[list[PolicyName]],
        wanted: dict[PolicyName, int],
        warm: dict[PolicyName, int],
        *,
        up: bool,
    ) -> None:
        for residents in lives:
            self.make(residents)
        self.total = self.replicas = len(lives)
        self.wanted, self.warm = wanted, warm
        for name, agent in self.agents.items():
            while up and agent.boot():
                pass
            self.report(name)
        self.tick(self.leader)

    def pick(self, which: int) -> SeatName:
        return list(self.pods)[which % len(self.pods)]

    @rule(wanted=all_wants)
    def wants_change(self, wanted: dict[PolicyName, int]) -> None:
        self.wanted = wanted
        self.tick(self.leader)

    @rule(warm=all_wants)
    def warmth_changes(self, warm: dict[PolicyName, int]) -> None:
        self.warm = warm
        self.tick(self.leader)

    @rule(total=st.integers(2, 6))
    def totals_change(self, total: int) -> None:
        self.total = total
        self.tick(self.leader)

    @rule(which=anyone, steps=st.integers(0, 4))
    def leader_ticks_and_steps(self, which: int, steps: int) -> None:
        self.tick(self.leader)
        for offset in range(steps):
            self.step(self.leader, which + offset)

    @rule(which=anyone)
    def leader_steps(self, which: int) -> None:
        self.step(self.leader, which)

    @rule(times=st.integers(1, 6))
    def leader_works(self, times: int) -> None:
        for _ in range(times):
            for position in reversed(range(len(self.leader.work))):
                self.step(self.leader, position)
            for name in self.pods:
                self.agents[name].end_order(good=True, crash=False)
                self.report(name)

    @precondition(lambda self: self.former)
    @rule(which=anyone, ticks=st.booleans(), steps=st.integers(0, 4))
    def former_leader_goes_on(self, which: int, steps: int, *, ticks: bool) -> None:
        former = self.former[which % len(self.former)]
        if ticks:
            self.tick(former)
        for offset in range(steps):
            self.step(former, which + offset)

    @rule(survives=st.booleans())
    def another_leads(self, *, survives: bool) -> None:
        if survives:
            self.former = [*self.former[-1:], self.leader]
        epoch = self.leader.term.epoch + 1
        self.leader = Controller(term=Term(holder=f"c{epoch}", epoch=epoch))
        self.tick(self.leader)

    @precondition(lambda self: self.pods)
    @rule(which=anyone, good=st.booleans(), crash=st.sampled_from([False, False, True]))
    def order_ends(self, which: int, *, good: bool, crash: bool) -> None:
        self.agents[self.pick(which)].end_order(good=good, crash=crash)

    @precondition(lambda self: self.pods)
    @rule(which=anyone, steps=st.integers(1, 5))
    def engines_boot_and_report(self, which: int, steps: int) -> None:
        name = self.pick(which)
        for _ in range(steps):
            self.agents[name].boot()
        self.report(name)

    @precondition(lambda self: self.pods)
    @rule(which=anyone, known=st.booleans())
    def engine_crashes(self, which: int, *, known: bool) -> None:
        name = self.pick(which)
        agent = self.agents[name]
        engines = sorted(agent.computing()) or sorted(agent.states)
        agent.crash(engines[which % len(engines)])
        if known:
            self.report(name)

    @precondition(lambda self: self.pods)
    @rule(
        which=anyone,
        change=st.sampled_from(["Suspect", "Bad", "silent", "terminating", "gone", "well", "well"]),
    )
    def seat_changes(self, which: int, change: str) -> None:
        name = self.pick(which)
        match change:
            case "gone":
                self.remove(name)
            case "terminating":
                self.pods[name] = replace(self.pods[name], terminating=True)
            case "silent":
                self.pods[name] = replace(self.pods[name], reachable=False)
            case "well":
                self.pods[name] = replace(self.pods[name], reachable=True, verdict=Verdict.OK)
            case _:
                self.pods[name] = replace(self.pods[name], verdict=Verdict(change))
        self.follow_replicas()

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.leader.left_alone.clear()

    # -------------------------------------------------------------- what must hold

    @invariant()
    def nobody_shares_a_seat(self) -> None:
        for name, pod in self.pods.items():
            assert len(pod.serving) <= 1
            assert len(self.agents[name].computing()) <= 1

    @invariant()
    def capacity_is_conserved(self) -> None:
        assert len(self.pods) == self.made - self.removed
        assert set(self.pods) == set(self.agents) == set(self.reports)
        for name, pod in self.pods.items():
            assert pod.serving <= set(self.agents[name].states)

    # -------------------------------------------------------------- and what must come

    def teardown(self) -> None:
        """Let the world be quiet, and see the wants reached."""
        self.former.clear()
        quiet = 0  # what has just been settled is looked at once more
        for _ in range(40):
            self.calm_down()
            self.now += 4.0  # beyond the lag of reports
            self.tick(self.leader)
            orphans = any(orphaned(seat, self.now, self.leader.term.epoch) for seat in self.view_all())
            still = not self.leader.work and not orphans and self.total == self.replicas
            quiet = quiet + 1 if still else 0
            if quiet > 1:
                break
        else:
            raise AssertionError(f"never quiet: {self.view_all()}")
        self.check_wants()
        self.check_warmth()

    def calm_down(self) -> None:
        while self.leader.work:
            for position in reversed(range(len(self.leader.work))):
                self.step(self.leader, position)
            for agent in self.agents.values():
                agent.end_order(good=True, crash=False)
        for name, agent in self.agents.items():
            agent.end_order(good=True, crash=False)
            while agent.boot():
                pass
            self.report(name)

    def check_wants(self) -> None:
        usable = {name: pod for name, pod in self.pods.items() if pod.usable}
        for policy, wanted in self.wanted.items():
            serving = [
                name
                for name, pod in usable.items()
                if policy in pod.serving and self.agents[name].states[policy] is S.SERVING
            ]
            labelled = [name for name, pod in usable.items() if policy in pod.serving]
            assert serving == labelled, "a label stands for nobody"
            assert len(serving) <= wanted, "more than wanted"
            free = [
                name
                for name, pod in usable.items()
                if not pod.serving and self.agents[name].states.get(policy) in {S.PAUSED, S.PARKED}
            ]
            assert len(serving) == wanted or not free, "a spare seat could have served"
            elsewhere = [
                name for name, pod in self.pods.items() if policy in pod.serving and name not in usable
            ]
            assert len(serving) < wanted or not elsewhere, "not handed over"
        for name, pod in usable.items():
            computing = self.agents[name].computing()
            assert computing == pod.serving, "resumed and out of rotation"
            assert pod.claim is None

    def check_warmth(self) -> None:
        spare = [name for name, pod in self.pods.items() if pod.usable and not pod.serving]
        if any(self.wanted[p] > sum(p in pod.serving for pod in self.pods.values()) for p in POLICIES):
            return  # promotions that wait for seats come first
        for policy, warm in self.warm.items():
            states = {name: self.agents[name].states.get(policy) for name in spare}
            lacks = warm - list(states.values()).count(S.PAUSED)
            asleep = {name for name, state in states.items() if state is S.PARKED}
            could = {name for name in asleep if (name, policy) not in self.leader.left_alone}
            assert lacks <= 0 or not could, "it could have been unparked"


TestWorld: Callable[..., object] = World.TestCase
World.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
