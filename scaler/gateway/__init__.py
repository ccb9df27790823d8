"""The queueing reverse proxy for OpenAI-style HTTP, and the built-in source of queue depth, queue age and TTFT.

Belongs here: routing by model, holding what exceeds the endpoints' slots, passing answers on, measuring, and pushing
samples to controllers. Does not belong here: deciding how many residents serve or which (the runtime replaces the
route table), and reading samples (`scaler.signals`). `scaler.runtime` and `scaler.cli` may import it.

`proxy.Gateway` is what the runtime embeds; `routes` and `queue` are pure.
"""
