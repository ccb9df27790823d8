"""How many, and why: the controller, its policies and signals, the gateway, the drill and the command line.

Belongs here: everything that decides counts, reads signals, talks to a cluster, answers KEDA, proxies requests or
speaks to people. Does not belong here: which seat serves and how an engine is paused (`warmpool`), weights (`loader`),
and torch in any form. The sub-packages are layers; the contracts in pyproject.toml are their law.
"""
