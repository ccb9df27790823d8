"""The law: from what the signals say to how many residents serve where.

Belongs here: pure functions and frozen values, standard library alone. Time and randomness are arguments. Does not
belong here: asyncio, clocks, logging, I/O, pydantic, seats by name (`warmpool.plan` names seats; the core counts).
May be imported by every other package of `scaler`; imports only the names and values of `warmpool.seats`.
"""
