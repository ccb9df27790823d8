"""Serve the fake API server and print a kubeconfig for it: `python -m tests.fakes.kube_api --port 8443`."""

import argparse
import asyncio
import json
import sys

from tests.fakes.kube_api.api import KubeApi, Target, User
from tests.fakes.kube_api.kinds import NAMESPACE
from tests.fakes.kube_api.server import kubeconfig, serving


async def _serve(port: int) -> None:
    # kubectl sends no token where there is no TLS
    api = KubeApi({token: User(name="test") for token in ("test", "")})
    for name in ("default", "kube-system"):
        api.create(Target(kind=NAMESPACE, namespace=""), {"metadata": {"name": name}}, {})
    async with serving(api, port) as url:
        sys.stdout.write(json.dumps(kubeconfig(url), indent=1) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=0, help="0 takes any that is free")
    try:
        asyncio.run(_serve(options.parse_args().port))
    except KeyboardInterrupt:
        sys.exit(130)


main()
