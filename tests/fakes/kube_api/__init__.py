"""A Kubernetes API server for tests: real HTTP, objects in memory, and faults on demand.

`tests/contract/test_kube_api.py` replays what a real kube-apiserver answered and compares. It knows the kinds in
`kinds.py` and nothing else; no controller runs in it, so a Deployment makes no pods: `tests.fakes.control_plane` and
`tests.fakes.kubelet` do that from outside.
`python -m tests.fakes.kube_api` serves it.
"""

from tests.fakes.kube_api.api import KubeApi, Pace, User
from tests.fakes.kube_api.faults import Call, Cut, Faults
from tests.fakes.kube_api.server import kubeconfig, serving

__all__ = ["Call", "Cut", "Faults", "KubeApi", "Pace", "User", "kubeconfig", "serving"]
