"""The stage daemon: checkpoints in a node's host memory, and in memory of its devices, ahead of need, for whoever wants them later.

A process of its own, started with `python -m loader stage`. It reads whole shards into memory files, checks them, keeps the ones used
last within a budget, and hands them out over a Unix socket: as read-only descriptors, or copied into memory that the client hands over.
A client's connection is its lease: what it was given isn't dropped before it closes the connection or dies. On request it holds copies in
device memory, to which engines attach by descriptor. No such memory has a name, so neither side leaves anything behind when it is killed.

`ledger` and `layout` are pure: what is held and what goes first; where tensors lie in a block. `wire` is the protocol. `pool` has the host
memory (`memory`: of one shard; `pages`: what it comes in), `device` copies to devices, `holder` holds copies there, `daemon` serves it all,
`client` asks.
"""
