"""An API server with many pods and nothing else, in a process of its own: `python tests/fakes/kube_pages.py 10000`.

It prints its port. Pods have the size of real ones: a dozen variables, volumes, and the record of who wrote which field.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_VERSION = "1000000"


def _pod(number: int) -> dict[str, object]:
    environment = [{"name": f"VARIABLE_{i}", "value": f"the value of variable {i}"} for i in range(12)]
    container = {
        "name": "engine",
        "image": "registry.example/engines/engine@sha256:" + "a1b2" * 16,
        "env": environment,
        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "200Gi"}, "requests": {"cpu": "8"}},
        "volumeMounts": [{"name": f"volume-{i}", "mountPath": f"/mnt/volume-{i}"} for i in range(4)],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    fields = {f"f:VARIABLE_{i}": {".": {}, "f:name": {}, "f:value": {}} for i in range(12)}
    owners = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsV1": {"f:spec": {"f:env": fields}},
        }
        for manager in ("kube-controller-manager", "kubelet")
    ]
    claim = {
        "id": f"controller-0-7-{number}",
        "policy": "chat",
        "operation": "Promote",
        "holder": "controller-0",
        "epoch": 7,
        "since": 1790000000.0,
        "deadline": 1790000060.0,
    }
    started = "2026-11-30T01:37:27Z"
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": started}
        for kind in ("emberpool.dev/admitted", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": f"spares-7d9c5b8f6-{number:05d}",
            "namespace": "pool",
            "uid": f"4d92799b-1dc8-4f34-a88d-{number:012d}",
            "resourceVersion": str(number + 1),
            "creationTimestamp": started,
            "labels": {
                "emberpool.dev/fleet": f"fleet-{number % 50}",
                "emberpool.dev/seat": "Serving",
                "pod-template-hash": "7d9c5b8f6",
                **({"serving.emberpool.dev/chat": "true"} if number % 2 else {}),
            },
            "annotations": {
                "controller.kubernetes.io/pod-deletion-cost": "100",
                "emberpool.dev/residents": json.dumps([{"policy": "chat", "port": 9001, "pausedMiB": 16000}]),
                **({"emberpool.dev/claim": json.dumps(claim)} if number % 4 == 0 else {}),
            },
            "managedFields": owners,
        },
        "spec": {
            "nodeName": f"node-{number // 8}",
            "containers": [container],
            "volumes": [{"name": f"volume-{i}", "emptyDir": {}} for i in range(4)],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 120,
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "conditions": conditions,
            "containerStatuses": [
                {"name": "engine", "ready": True, "restartCount": 0, "imageID": "a1b2" * 16}
            ],
        },
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pods: list[bytes]

    def do_GET(self) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        if query.get("watch"):
            self._watch()
            return
        start, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(self.pods)
        metadata = {"resourceVersion": _VERSION}
        if start + limit < len(self.pods):
            metadata["continue"] = str(start + limit)
        head = json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": metadata}).encode()[:-1]
        body = head + b',"items":[' + b",".join(self.pods[start : start + limit]) + b"]}"
        self._begin(("Content-Length", str(len(body))))
        self.wfile.write(body)

    def _begin(self, header: tuple[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header(*header)
        self.end_headers()

    def _watch(self) -> None:
        self._begin(("Transfer-Encoding", "chunked"))
        while True:
            time.sleep(1)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    _Handler.pods = [
        json.dumps(_pod(number), separators=(",", ":")).encode() for number in range(int(sys.argv[1]))
    ]
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]} {len(_Handler.pods[0])}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
