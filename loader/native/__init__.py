"""What the loader has in C: the inner loop of a load to a device, which threads of Python can't run side by side.

Belongs here: plain C files that need no header but the system's, and how they are built. Must not: Python's API, CUDA's headers,
anything that decides. Installing the package builds them where there is a C compiler; without one the loader does the same in
Python, and slower. In a checkout, `python -m loader.native` builds them in place.

Everything here runs without the rest of the package, for installers import it before anything else is there.
"""
