"""Prometheus' query language, as far as a policy's queries need it: read as a tree, and what keeps one from being read.

Belongs here: text in, values out; no knowledge of policies. May be imported by the formats and by lint.
"""
