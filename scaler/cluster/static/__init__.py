"""The cluster port over a list of agents: seats that somebody else starts, on VMs, under Slurm, in containers.

Belongs here: reading the list, hearing and asking its agents, claims and rotation in this process's memory. Does not
belong here: starting, stopping or replacing a seat; nobody here can. Imported by `scaler.runtime`.
"""
