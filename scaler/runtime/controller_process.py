"""`emberpool controller`: the controller as a process of its own, over a list of agents or on Kubernetes."""

import asyncio
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from scaler.errors import LeadershipLost, UserError
from scaler.policy.reading import PolicyFiles, Reading
from scaler.runtime import kube_controller, logs, static_controller
from scaler.runtime.clock import SystemClock
from scaler.runtime.config_map_policies import first_reading
from scaler.runtime.controller_options import ControllerOptions
from scaler.runtime.controller_wiring import Begin
from scaler.runtime.hang_up import reload_on_hang_up
from scaler.runtime.lifetime import Stopped, first_error, stop_on_signals
from scaler.runtime.sockets import listen
from warmpool.metric_families import expose_declared_only


def run(options: ControllerOptions) -> int:
    """Run until SIGINT or SIGTERM.

    Returns:
        The exit code: 0.

    Raises:
        UserError: policies, the list of agents, the cluster or the address can't be used.
        LeadershipLost: another controller works with the same list of agents.
    """
    logs.configure()
    expose_declared_only()
    return asyncio.run(_main(options))


async def _main(options: ControllerOptions) -> int:
    policies = await _policies(options)
    async with AsyncExitStack() as stack:
        stop = stop_on_signals(stack)
        begin = Begin(
            options=options,
            policies=policies.set,
            stop=stop,
            reload=reload_on_hang_up(stack, stop),
            listener=stack.enter_context(listen(options.host, options.port, "--port")),
            clock=SystemClock(),
            registry=CollectorRegistry(),
        )
        serve = static_controller.serve if options.kubernetes is None else kube_controller.serve
        try:
            async with AsyncExitStack() as serving:
                await serve(serving, begin, policies)
        except* Stopped:
            pass
        except* (UserError, LeadershipLost) as group:
            raise first_error(group) from None
    return 0


async def _policies(options: ControllerOptions) -> Reading:
    """Read the policies that the controller begins with."""
    of = options.kubernetes
    if of is None or of.policies is None:
        return PolicyFiles(options.policies).read()
    return await first_reading(kube_controller.access_options(of), of.policies)
