"""What the node's GPUs hold and how they are: NVML asked without ever waiting for it, GPU → pod → process, the node agent.

Belongs here: NVML behind a port, the threads that ask it, who a process and a GPU belong to, what callers may know of that, the
rules of GPU health with what they remember, which nodes and devices should bear which marks and how fast, the node agent's process and its
client, and the look at GPUs before an engine loads its weights (`preflight`, a process of its own in the engine's place).
Does not belong here: what is done about it (agents and the leading controller act; a node agent reports), a cluster's API and
its credentials, CUDA outside of `preflight`.
May be imported by the agent (`client` and `preflight.findings` alone), by the controller (the pure `breaker`, `marks`, `device_marks`, `verdicts`) and the command line. `pod_resources` is the only importer of grpc here, `nvml` the
only one of pynvml; both when they are first needed, because the base install has neither.
"""
