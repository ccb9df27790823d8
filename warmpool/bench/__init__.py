"""Measurements of the warm pool's parts that a person runs; nothing imports them."""
