"""A cluster of processes on one machine: a seat is an agent process with its engines.

Belongs here: the adapter of the cluster port for `emberpool local`, starting and ending seats, finding GPUs, counting
the memory that seats will need. Imports no other adapter.
"""
