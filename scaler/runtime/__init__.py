"""The loop: observe, decide, plan, act, publish; and the processes that embed it.

Belongs here: wiring adapters to the pure core, the tick, carrying out plans, HTTP for people and machines, supervision,
logs. Does not belong here: any rule of the law or the planner, any cluster's API. Imported by `scaler.cli` alone.
"""
