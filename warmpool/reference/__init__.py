"""The reference engine: a small OpenAI-style server in torch that behaves towards the outside as vLLM does.

It makes drills and tests real on any machine, CPU or GPU: real weights through `loader`, continuous batching, streams, pausing
with the KV memory given back, parking of its weights in host memory, vLLM's routes and metric names.
Belongs here: the model, its memory, the scheduler, the HTTP surfaces, the process, and checkpoints with random weights.
Does not belong here: how other engines are spoken to (`warmpool.engines`), when to pause or promote (`warmpool.agent`), how
weights get from files into memory (`loader`).
Imports `loader` and, of its own parent, `warmpool.guard`, `warmpool.standins`, `warmpool.expectations` and its JSON (`warmpool.wire`); only `bench` speaks to engines through `warmpool.engines`. Nothing
else imports it: it is started as a process of its own (`python -m warmpool.reference serve`), which keeps torch out of the
controller, the gateway and the agent.
"""
