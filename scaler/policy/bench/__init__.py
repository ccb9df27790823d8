"""Measurements of the policy reader; run by hand, imported by nothing."""
