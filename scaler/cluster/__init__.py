"""Pods and nodes: the port to whatever runs seats, and its adapters.

Belongs here: reading seats, claiming them, putting them into rotation, sizing workloads, reaching agents. Does not
belong here: deciding anything. Adapters (`local`, `static` and `kube`) don't know each other; `runtime` picks one.
"""
