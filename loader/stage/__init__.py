"""The stage daemon: checkpoints in a node's host memory ahead of need, for whoever loads them later.

A process of its own, started with `python -m loader stage`. It reads whole shards into sealed memory files, checks them, keeps
the ones used last within a budget, and hands them out over a Unix socket: as read-only descriptors, or copied into memory that the
client hands over. A client's connection is its lease: what it was given isn't dropped before it closes the connection or dies.
Memory files have no names, so neither side leaves anything behind when it is killed.

`ledger` is pure: what is held, and what goes first. `wire` is the protocol. `pool` holds memory, `daemon` serves it, `client` asks.
"""
