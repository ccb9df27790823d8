"""What people type: the `emberpool` command, its grammar, its tables and its errors.

Belongs here: parsing arguments, asking a running controller over HTTP, printing. Does not belong here: any decision, any
state, anything that another program would want to import. Nobody imports this package but the console script and
`python -m scaler`. Modules import what is slow (aiohttp, pydantic, rich) inside the commands, so that help is instant.
"""
