"""The product as a benchmark on one machine, a GPU or none: scripts that say what they ran on and leave every figure behind.

    gpu              the GPU's tests and the GPU drill
    promotions       a request to a model that rests, until its first token, by depth
    five_models      five models on one GPU that burst in turn
    kills            SIGKILL to engine, agent and launcher in each state, beside a neighbour that serves
    resident_suite   the last three, each within a limit

Each is run as `python -m scaler.drill.bench.NAME OUT`; with `--shape tiny --device cpu` the same on any machine. Belongs here:
starting the product as its users do, asking it, and holding what comes back against what a sound engine answers. Does not
belong here: a shortcut past gateway, controller or agent. Nothing imports it.
"""
