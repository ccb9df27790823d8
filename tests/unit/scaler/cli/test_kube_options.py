"""Whom a command asks, by its flags and its environment."""

import pytest

from scaler.cli.kube_options import AtUrl, InCluster, Said, Target, target_of
from scaler.cli.options import DEFAULT_SERVER
from scaler.errors import UserError

URL, OTHER = "http://a:9080", "http://b:9080"


@pytest.mark.parametrize(
    ("said", "environ", "plugin", "target"),
    [
        pytest.param(Said(), {}, False, AtUrl(DEFAULT_SERVER), id="nothing-said"),
        pytest.param(Said(controller=URL), {"KUBECONFIG": "x"}, True, AtUrl(URL), id="an-address-rules"),
        pytest.param(Said(), {"EMBERPOOL_CONTROLLER": URL}, True, AtUrl(URL), id="environment"),
        pytest.param(
            Said(),
            {"EMBERPOOL_CONTROLLER": URL, "EMBERPOOL_SERVER": OTHER},
            False,
            AtUrl(URL),
            id="two-names-of-the-environment",
        ),
        pytest.param(Said(), {"EMBERPOOL_SERVER": OTHER}, False, AtUrl(OTHER), id="its-older-name"),
        pytest.param(Said(), {"KUBECONFIG": "x"}, False, InCluster(), id="kubeconfig-in-the-environment"),
        pytest.param(Said(), {"KUBECONFIG": ""}, False, AtUrl(DEFAULT_SERVER), id="an-empty-one"),
        pytest.param(
            Said(namespace="serving"),
            {"EMBERPOOL_CONTROLLER": URL},
            False,
            InCluster(namespace="serving"),
            id="a-flag-rules-over-the-environment",
        ),
        pytest.param(Said(context="prod"), {}, False, InCluster(context="prod"), id="context"),
        pytest.param(Said(all_namespaces=True), {}, False, InCluster(all_namespaces=True), id="all"),
        pytest.param(Said(kubeconfig="k"), {}, False, InCluster(kubeconfig="k"), id="kubeconfig"),
        pytest.param(Said(), {}, True, InCluster(), id="run-by-kubectl"),
        pytest.param(
            Said(controller_namespace="ops"), {}, False, AtUrl(DEFAULT_SERVER), id="says-nothing-of-a-cluster"
        ),
    ],
)
def test_the_rule(said: Said, environ: dict[str, str], plugin: bool, target: Target) -> None:  # noqa: FBT001
    assert target_of(said, environ, plugin=plugin) == target


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            Said(controller=URL, namespace="x"),
            "--controller names one controller, and kubectl's flags a cluster",
        ),
        (
            Said(namespace="x", all_namespaces=True),
            "--namespace and --all-namespaces exclude each other",
        ),
    ],
)
def test_flags_that_contradict_each_other(said: Said, message: str) -> None:
    with pytest.raises(UserError, match=message):
        target_of(said, {}, plugin=False)
