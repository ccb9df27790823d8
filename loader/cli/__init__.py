"""The command line of the loader: `python -m loader`.

Belongs here: options, what is printed, exit codes. Must not: anything that a program would want, which is the library's.
Results go to standard output, everything else to standard error. Exit status: 0 fine; 1 the checkpoint is not usable, or
couldn't be loaded; 2 wrong usage.
"""
