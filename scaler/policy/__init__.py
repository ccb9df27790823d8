"""The YAML that people write: read with positions, checked, compiled to the values of the core.

Belongs here: the file formats (models), where each value stands in its file (source), the rules between documents and
the way to `scaler.core.model` (compile), the set that stands in when nobody wrote one (default). Does not belong here:
anything that decides, runs, or talks to a network. May be imported by every package of `scaler` above the core.
"""
