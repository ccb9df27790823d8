"""`--watch` of a cluster: pods are watched, and what goes wrong is said and tried again."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.forked import Piped, piped
from tests.fakes.kube_api.faults import Answer
from tests.integration.cli.cluster import FakeCluster, cluster, written
from tests.integration.cli.test_cluster import pod


@contextmanager
def watching(there: FakeCluster, tmp_path: Path, *arguments: str) -> Iterator[Piped]:
    config = written(tmp_path / "config", there)
    environment = {**os.environ, "NO_COLOR": "1"}
    with piped(*arguments, "--watch", "--kubeconfig", config, environment=environment) as process:
        guard = threading.Timer(60, process.forked.send_signal, (signal.SIGKILL,))
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()


def line(process: Piped) -> str:
    return process.stdout.readline().strip()


def test_a_change_is_shown_when_it_comes_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    with cluster() as there:
        there.create("Pod", pod("spares-0", "Spare"))
        with watching(there, tmp_path, "seat", "get", "-o", "name") as process:
            assert line(process) == "seat/spares-0"
            there.create("Pod", pod("spares-1", "Spare"))
            assert [line(process), line(process)] == ["seat/spares-0", "seat/spares-1"]
            process.forked.send_signal(signal.SIGINT)
            assert process.forked.wait(timeout=30) == 130
            assert process.stdout.read() == ""
            assert process.stderr.read().startswith("the controller isn't reached")
    watched = [call for call in there.calls() if (call.verb, call.resource) == ("watch", "pods")]
    listed = [call for call in there.calls() if (call.verb, call.resource) == ("list", "pods")]
    assert watched
    assert len(listed) == 2, "one to see what is wrong at once, one that the watch goes on from"


def test_what_is_wrong_at_once_ends_it(tmp_path: Path) -> None:
    with cluster() as there:
        pass
    with watching(there, tmp_path, "seat", "get") as process:
        assert process.forked.wait(timeout=30) == 1
        assert "can't be read" in process.stderr.read()


@pytest.mark.long
def test_an_api_server_that_stops_answering_is_waited_for(tmp_path: Path) -> None:
    with cluster() as there:
        there.create("Pod", pod("spares-0", "Spare"))
        with watching(there, tmp_path, "seat", "get", "-o", "name") as process:
            assert line(process) == "seat/spares-0"
            there.api.faults.answer(Answer(status=500), lambda call: call.resource == "pods")
            there.do(there.api.faults.drop_watches)
            assert line(process).startswith("watching is interrupted, and what is known is ")
            there.do(there.api.faults.clear)
            there.create("Pod", pod("spares-1", "Spare"))
            shown = iter(lambda: line(process), "seat/spares-1")
            assert all("interrupted" in each or each == "seat/spares-0" for each in shown)


def test_a_reader_that_has_gone_ends_it(tmp_path: Path) -> None:
    with cluster() as there:
        there.create("Pod", pod("spares-0", "Spare"))
        with watching(there, tmp_path, "seat", "get", "-o", "name") as process:
            assert line(process) == "seat/spares-0"
            process.stdout.close()
            there.create("Pod", pod("spares-1", "Spare"))
            assert process.forked.wait(timeout=30) == 1
            assert "Traceback" not in process.stderr.read()
