"""Readings in: what gateways, engines and queues say about load, as `core.model.Load` with ages and qualities.

Belongs here: parsing, checking, keeping and ageing what sources say. Does not belong here: deciding anything, or
measuring requests (`scaler.gateway`). `scaler.runtime` and `scaler.cli` may import it.
"""
