"""Cold starts on this machine: one is made, its steps are timed, and each is held against its target.

Belongs here: the steps and their targets, and what starts an engine for being timed. Must not: anything of a cluster. The command line may
import it.
"""
