"""Measurements of the reference engine that a person runs; nothing imports them."""
