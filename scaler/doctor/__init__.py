"""What is wrong with an installation in a cluster, and the command that mends it.

Belongs here: reading what has to be looked at, without writing anything, and pure checks from what was read to findings. Does
not belong here: mending. Each check takes a picture (`picture`) and yields findings (`findings`); `reading` is the only module
that speaks to a server. Nothing of an object's form is taken for granted: whoever can write to a cluster can write odd objects.
May be imported by `scaler.cli`.
"""
