"""Measurements of the controller; run by hand, imported by nothing."""
