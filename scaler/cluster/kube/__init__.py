"""Pods and nodes of a Kubernetes cluster: reading them without asking, and writing them without harm.

Belongs here: access and credentials, one HTTP client with typed errors, reflectors, seats joined from pods and agents' reports
(`cluster` is the port's adapter), the writes and what holds them back, pods' housekeeping, leader election. Does not belong
here: deciding anything. `access` is the only importer of kubernetes_asyncio: kubeconfig files, plug-ins for
credentials and TLS are that library's, while its watch, its retries and its elector are not used. Imported by
`scaler.runtime` and `scaler.cli`.
"""
