"""Measurements of the signals; run by hand, imported by nothing."""
