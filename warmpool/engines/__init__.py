"""How engines are spoken to: one port, one adapter per kind of control surface, and what each was found to be able to do.

Belongs here: the port (`port`), its deadlines, the adapters, how their clients' errors become ours, probes and what they find
(`capabilities`, a value that everyone may hold), what an engine must be started with (`arguments`).
Does not belong here: when to pause or promote, starting processes, guards for engines that have none (`warmpool.agent`), what an
engine is made of (`warmpool.reference`), torch.
May be imported by `warmpool.agent` and by tests; `capabilities` by whoever reads seats, `arguments` and `kinds` by the command line.
Imports `warmpool.errors` alone.
"""
