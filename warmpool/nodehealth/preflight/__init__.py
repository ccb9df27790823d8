"""A look at the GPUs in an engine's place, before it loads any weights: memory errors, free memory, and a test that writes and reads.

    python3 preflight.pyz [options] -- COMMAND [ARGUMENT …]

It becomes the engine where nothing is found, and ends with a line that says what was found otherwise. It is mounted into images that
we don't make, so what it is made of needs Python's standard library alone, 3.9 or newer, and of ours `loader.cuda.library`;
`python -m warmpool.nodehealth.preflight --pack FILE` makes one file of it.

Belongs here: what is looked at and what it says (`patterns`, `march`, `findings`: PURE), the drivers that are asked, the process.
Does not belong here: what becomes of a resident that was refused (its agent's business), and of its GPU (the node agent's).
"""
