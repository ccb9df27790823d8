"""Measurements of the gateway; run by hand, imported by nothing."""
