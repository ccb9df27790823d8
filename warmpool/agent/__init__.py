"""The agent of one seat: it warms the residents, pauses, resumes, proves and drains them, and lets one serve at a time.

Belongs here: engine processes, the life of residents, orders and their rules, proofs, what is told to controllers.
Does not belong here: which seat gets an order and why (`warmpool.plan`, `scaler`), how an engine is spoken to
(`warmpool.engines`), torch, anything of an engine's own image, credentials of a cluster.
May be imported by the command line alone; everyone else speaks to it over HTTP.
"""
