"""How engines are spoken to: one port, one adapter per kind of control surface.

Belongs here: the port (`port`), its deadlines, the adapters, and how their clients' errors become ours.
Does not belong here: when to pause or promote (`warmpool.agent`), starting processes (`warmpool.agent`), what an engine is made
of (`warmpool.reference`), torch.
May be imported by `warmpool.agent` and by tests; imports `warmpool.errors` alone.
"""
