"""Comparisons on the machine at hand: this loader, its peers, and what the hardware can do, in one run.

`command` measures each way in fresh processes, because a second load in one process reuses memory that the first had to
take; `ways` and `limits` are what is measured there. Peers that aren't installed are left out.
"""
