"""The law against other rules, on real arrivals and in simulated time.

Belongs here: other scalers' rules as they are published (pure), a discrete-event model of requests, seats and GPUs, and
the tables and pictures that compare them. Imported by nothing of the product. `python -m scaler.runtime.bench.law`.
"""
