"""Which seat, and is it safe: residents, their states, the planner, engines, the agent.

Belongs here: the vocabulary of seats and residents, the table of their transitions, the planner that names seats,
what a claim is, the adapters of inference engines, the agent that runs beside them, GPU health.
Does not belong here: how many residents should serve (that is `scaler.core`), Kubernetes or any other cluster API.
May be imported by `scaler`; imports only `loader` (and that from `warmpool.reference`,
`warmpool.nodehealth.preflight` and, once it has a stage daemon to ask, `warmpool.agent.staging` alone).
"""
