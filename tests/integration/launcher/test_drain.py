"""SIGTERM: the agent drains, engines end, and the exit status says how it went."""

import os
import signal
import time

import pytest

from tests.integration.launcher.conftest import QUIET, STUBBORN, Launchers, living, until

POLITE = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_engines_go_on_until_the_agent_has_drained(launchers: Launchers, number: signal.Signals) -> None:
    launcher = launchers("--drain-seconds", "1000")
    agent = launcher.heard()
    engine = agent.shell("chat", POLITE)
    launcher.printed("ready")
    launcher.signal(number)
    assert 990 < agent.event("draining")["secondsLeft"] <= 1000
    assert agent.ask("start", engine="new", token="t", command=["true"])["code"] == "Draining"
    assert living(engine["pid"])
    assert agent.ask("drained")["kind"] == "done"
    report = agent.event("exit")
    assert (report["cause"], report["outTail"]) == ("Asked", "ready\nbye\n")
    assert launcher.status() == 0
    assert not launcher.path.exists()


def test_an_agent_that_says_nothing_has_until_the_deadline(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "0.5")
    agent = launcher.heard()
    agent.shell("chat", POLITE)
    launcher.printed("ready")
    told = time.monotonic()
    launcher.signal(signal.SIGTERM)
    agent.event("draining")
    agent.event("exit")
    assert time.monotonic() - told >= 0.5
    assert launcher.status() == 3


def test_without_an_agent_engines_have_until_the_deadline(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "0.5")
    agent = launcher.heard()
    agent.shell("chat", POLITE)
    launcher.printed("ready")
    agent.close()
    launcher.printed("is gone", error=True)
    told = time.monotonic()
    launcher.signal(signal.SIGTERM)
    assert launcher.status() == 3
    assert time.monotonic() - told >= 0.5
    assert "[chat] bye" in launcher.out.read_text()


def test_an_agent_that_comes_back_meanwhile_is_told(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "1000")
    agent = launcher.heard()
    agent.shell("chat", POLITE)
    launcher.printed("ready")
    agent.close()
    launcher.signal(signal.SIGTERM)
    launcher.printed("draining", error=True)
    back = launcher.agent()
    assert 900 < back.hello()["draining"]["secondsLeft"] < 1000
    back.ask("drained")
    assert launcher.status() == 0


def test_an_agent_that_stops_all_engines_has_drained(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "1000")
    agent = launcher.heard()
    agent.shell("chat", POLITE)
    launcher.printed("ready")
    launcher.signal(signal.SIGTERM)
    agent.event("draining")
    agent.stop("chat")
    assert launcher.status() == 0


def test_with_nothing_to_drain_it_ends_at_once(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "1000")
    launcher.heard()
    launcher.signal(signal.SIGTERM)
    assert launcher.status() == 0


def test_the_status_tells_that_an_engine_had_to_be_killed(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "1000", "--grace-seconds", "0.2")
    agent = launcher.heard()
    agent.shell("chat", STUBBORN)
    launcher.printed("ready")
    launcher.signal(signal.SIGTERM)
    agent.event("draining")
    agent.ask("drained")
    assert agent.event("exit")["cause"] == "Forced"
    assert launcher.status() == 4


def test_what_the_agent_had_killed_before_is_not_in_the_status(launchers: Launchers) -> None:
    launcher = launchers()
    agent = launcher.heard()
    agent.shell("chat", STUBBORN)
    launcher.printed("ready")
    agent.stop("chat", graceSeconds=0)
    agent.event("gone")
    launcher.signal(signal.SIGTERM)
    assert launcher.status() == 0


def test_a_second_sigterm_does_not_wait_for_the_agent_and_a_third_not_for_engines(
    launchers: Launchers,
) -> None:
    launcher = launchers("--drain-seconds", "1000", "--grace-seconds", "1000")
    agent = launcher.heard()
    agent.shell("chat", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done")
    launcher.printed("ready")
    launcher.signal(signal.SIGTERM)
    agent.event("draining")
    launcher.signal(signal.SIGTERM)
    launcher.printed("asked")
    launcher.signal(signal.SIGTERM)
    assert agent.event("exit")["cause"] == "Forced"
    assert launcher.status() == 4


def test_a_terminals_interrupt_reaches_the_launcher_alone_and_once(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "1000", before=["setsid"])
    agent = launcher.heard()
    engine = agent.shell("chat", QUIET)
    os.killpg(launcher.pid, signal.SIGINT)
    agent.event("draining")
    assert agent.list()["chat"]["state"] == "Running"
    assert living(engine["pid"])
    assert "again" not in launcher.err.read_text()
    agent.ask("drained")
    assert launcher.status() == 0


def test_nobody_drains_unasked(launchers: Launchers) -> None:
    launcher = launchers()
    agent = launcher.heard()
    engine = agent.shell("chat", QUIET)
    assert agent.ask("drained")["code"] == "NotDraining"
    assert living(engine["pid"])


def test_the_last_lines_of_engines_are_not_lost(launchers: Launchers) -> None:
    launcher = launchers("--drain-seconds", "0")
    agent = launcher.heard()
    agent.shell(
        "chat", "trap 'seq 1 20000; printf last; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    )
    launcher.printed("ready")
    launcher.signal(signal.SIGTERM)
    launcher.status()
    lines = launcher.out.read_text().splitlines()
    assert lines == ["[chat] ready", *(f"[chat] {number}" for number in range(1, 20001)), "[chat] last"]


def test_a_reader_of_the_log_that_is_behind_gets_the_rest(launchers: Launchers) -> None:
    read, write = os.pipe()
    launcher = launchers("--drain-seconds", "0", output=write)
    os.close(write)
    agent = launcher.heard()
    agent.shell("chat", "trap 'seq 1 20000; exit 0' TERM; echo ready >&2; while :; do sleep 0.05; done")
    launcher.printed("ready", error=True)
    launcher.signal(signal.SIGTERM)
    agent.event("gone")
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read().endswith(b"\n[chat] 20000\n")
    assert launcher.status() == 3


def test_a_log_that_nobody_reads_holds_up_nothing(launchers: Launchers) -> None:
    read, write = os.pipe()
    try:
        launcher = launchers("--drain-seconds", "0", output=write)
        os.close(write)
        agent = launcher.heard()
        agent.shell("chat", "trap 'exit 0' TERM; seq 1 1000000; echo done >&2; while :; do sleep 0.05; done")
        launcher.printed("done", error=True)
        launcher.signal(signal.SIGTERM)
        assert launcher.status() == 3
    finally:
        os.close(read)
    until(lambda: not launcher.path.exists())
