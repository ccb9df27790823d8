"""What the gateway costs: time added to streams beside other proxies, and memory of what it holds.

Belongs here: a stand-in engine that costs little, an open-loop client, the proxies to compare with, and the figures. Nothing but
tests may import it.
"""
