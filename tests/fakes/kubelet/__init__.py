"""A stand-in for the nodes of a cluster: it registers them and runs the pods bound to them as processes of this machine.

It speaks plain HTTP with an API server, the tests' own or a real one. Only nodes are here; what schedules pods and makes them stands
in `tests.fakes.control_plane`, and a real cluster has its own. `python -m tests.fakes.kubelet` runs it.
"""

from tests.fakes.kubelet.containers import Pace
from tests.fakes.kubelet.images import HOST, OURS, Image, Images
from tests.fakes.kubelet.making import Setting
from tests.fakes.kubelet.network import Network, loopback, namespaces
from tests.fakes.kubelet.nodes import NodeOptions, Nodes, running
from tests.fakes.kubelet.services import proxying

__all__ = [
    "HOST",
    "OURS",
    "Image",
    "Images",
    "Network",
    "NodeOptions",
    "Nodes",
    "Pace",
    "Setting",
    "loopback",
    "namespaces",
    "proxying",
    "running",
]
