"""Residents bear witness for each other: who is told what, what is kept, and what nobody is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from scaler.cluster.agents import Told
from scaler.runtime.agreement import DOUBT_SECONDS, Agreement
from scaler.runtime.kept_files import EXPECTATIONS as FILE
from scaler.store.recordings import MOST, Recordings, added, load, save
from warmpool.claim import Term
from warmpool.errors import AgentError, EngineLost
from warmpool.expectations import Answer, Ownership, Recording, Statement
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime

CHAT = PolicyName("chat")
OLD, NEW = Ownership(engine_version="1"), Ownership(engine_version="2")


def answers(*tokens: int) -> tuple[Answer, ...]:
    return (Answer(prompt="p", tokens=tokens),)


@dataclass
class Residents:
    """Seats with one resident each, what these answer, and what they have been told; cluster and agents in one."""

    said: dict[str, Statement] = field(default_factory=dict)
    told: dict[str, Recording] = field(default_factory=dict)
    fails: dict[str, AgentError | EngineLost] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    agreed: list[int] = field(default_factory=list)
    changed: list[Callable[[], None]] = field(default_factory=list)
    agreement: Agreement = field(init=False)

    def join(self, name: str, *tokens: int, running: Ownership = OLD) -> None:
        self.said[name] = Statement(uid=name, ownership=running, answers=answers(*tokens))
        self.tell_change()

    def leave(self, name: str) -> None:
        del self.said[name]
        self.told.pop(name, None)
        self.tell_change()

    def tell_change(self) -> None:
        for each in self.changed:
            each()

    def seats(self) -> list[Seat]:
        return [
            Seat(
                name=SeatName(name),
                uid=name,
                version="1",
                fleet=FleetName("own"),
                residents=(
                    Resident(
                        policy=CHAT,
                        state=ResidentState.PAUSED if name in self.told else ResidentState.LOADING,
                        since=0.0,
                        waiting="" if name in self.told else "NeedsWitness: nobody knows",
                    ),
                ),
            )
            for name in self.said
        ]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.changed.append(changed)
        return lambda: self.changed.remove(changed)

    async def ask(self, seat: Seat, policy: PolicyName, *, deadline: float) -> Told:
        assert (policy, deadline > 0) == (CHAT, True)
        self.asked.append(seat.name)
        if seat.name in self.fails:
            raise self.fails[seat.name]
        return Told(statement=self.said[seat.name], missing="NeedsWitness")

    async def tell(
        self, seat: Seat, policy: PolicyName, recording: Recording, *, epoch: int, deadline: float
    ) -> Told:
        assert (policy, epoch, deadline > 0) == (CHAT, 7, True)
        self.told[seat.name] = recording
        self.tell_change()
        return Told(recording=recording)


@asynccontextmanager
async def running(residents: Residents, kept: Recordings | None = None) -> AsyncIterator[Residents]:
    agreement = Agreement(residents, residents, lambda: residents.agreed.append(1))  # type: ignore[arg-type]
    agreement.learn(kept or {})
    residents.agreement = agreement
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(agreement.run(Term(holder="t", epoch=7)))
        try:
            yield residents
        finally:
            task.cancel()


async def test_two_that_answer_alike_are_told_so() -> None:
    async with running(Residents()) as residents:
        residents.join("a", 1, 2)
        await asyncio.sleep(1)
        assert residents.told == {}
        residents.join("b", 1, 2)
        await asyncio.sleep(1)
        assert {name: told.answers for name, told in residents.told.items()} == {
            "a": answers(1, 2),
            "b": answers(1, 2),
        }
        assert residents.told["a"].witnesses == {"a", "b"}


async def test_nobody_is_its_own_witness() -> None:
    async with running(Residents()) as residents:
        residents.join("a", 1)
        await asyncio.sleep(3600)
        assert residents.told == {}
        assert residents.asked == ["a"]  # it was asked once, and not every five seconds


async def test_those_that_run_with_something_else_are_no_witnesses() -> None:
    async with running(Residents()) as residents:
        residents.join("a", 1)
        residents.join("b", 1, running=NEW)
        await asyncio.sleep(60)
        assert residents.told == {}


async def test_who_comes_later_is_told_what_was_kept() -> None:
    async with running(Residents()) as residents:
        residents.join("a", 1)
        residents.join("b", 1)
        await asyncio.sleep(1)
        assert residents.agreed == [1]
    async with running(Residents(), residents.agreement.recordings) as later:
        later.join("c", 1)
        await asyncio.sleep(1)
        assert later.told["c"].witnesses == {"a", "b"}
        assert not later.agreed


async def test_one_that_answers_otherwise_waits_for_a_second_and_is_then_told() -> None:
    async with running(Residents()) as residents:
        for name in "ab":
            residents.join(name, 1)
        await asyncio.sleep(1)
        residents.join("c", 2)
        await asyncio.sleep(DOUBT_SECONDS - 60)
        assert "c" not in residents.told
        assert residents.agreement.doubts.keys() == {("c", CHAT)}
        assert "token 0 is 2 where 1 was recorded" in residents.agreement.doubts["c", CHAT]
        await asyncio.sleep(120)
        assert residents.told["c"].answers == answers(1)
        assert residents.agreement.doubts == {}


async def test_two_that_answer_otherwise_make_an_expectation_of_their_own() -> None:
    async with running(Residents()) as residents:
        for name in "ab":
            residents.join(name, 1)
        await asyncio.sleep(1)
        for name in "cd":
            residents.join(name, 2)
        await asyncio.sleep(1)
        assert {name: told.answers for name, told in residents.told.items()} == {
            **dict.fromkeys("ab", answers(1)),
            **dict.fromkeys("cd", answers(2)),
        }
        residents.join("e", 1)
        await asyncio.sleep(1)
        assert residents.told["e"].answers == answers(1)


async def test_an_agent_that_does_not_answer_is_asked_again() -> None:
    residents = Residents(fails={"a": EngineLost("no")})
    async with running(residents):
        residents.join("a", 1)
        residents.join("b", 1)
        await asyncio.sleep(20)
        assert residents.told == {}
        residents.fails.clear()
        await asyncio.sleep(6)
        assert set(residents.told) == {"a", "b"}


async def test_a_witness_that_has_left_stays_one_and_what_it_said_does_not() -> None:
    async with running(Residents()) as residents:
        residents.join("a", 1)
        await asyncio.sleep(1)
        residents.leave("a")
        await asyncio.sleep(1)
        residents.join("b", 1)
        await asyncio.sleep(60)
        assert residents.told == {}


def recording(*tokens: int) -> Recording:
    return Recording(ownership=OLD, answers=answers(*tokens), witnesses=frozenset({"a", "b"}))


def test_what_is_kept_survives_a_file(tmp_path: Path) -> None:
    kept = {CHAT: (recording(1), replace(recording(2), ownership=NEW))}
    save(tmp_path / FILE, kept)
    assert load(tmp_path / FILE) == kept
    assert load(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2, "policies": {}}', '{"format": 1, "policies": {"chat": [{}]}}']
)
def test_a_file_that_is_none_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert load(tmp_path / FILE) == {}
    assert (tmp_path / "expectations.unreadable").read_text() == text


def test_what_was_agreed_on_since_is_newer_than_what_was_kept() -> None:
    agreement = Agreement(Residents(), Residents(), lambda: None)  # type: ignore[arg-type]
    agreement.recordings = {CHAT: (recording(1), recording(9))}
    agreement.learn({CHAT: (recording(1), recording(2)), PolicyName("code"): (recording(3),)})
    assert agreement.recordings == {
        CHAT: (recording(1), recording(2), recording(9)),
        PolicyName("code"): (recording(3),),
    }


def test_the_oldest_go() -> None:
    kept: dict[PolicyName, tuple[Recording, ...]] = {}
    for token in range(MOST + 2):
        kept = dict(added(kept, CHAT, recording(token)))  # type: ignore[arg-type]
    assert [each.answers[0].tokens for each in kept[CHAT]] == [(token,) for token in range(2, MOST + 2)]
