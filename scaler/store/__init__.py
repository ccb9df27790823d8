"""What outlives a tick: journals on disk; later what replicas share through Redis.

Belongs here: writing and reading records. Does not belong here: what the records mean. Never on a promotion's path.
"""
