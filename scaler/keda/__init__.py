"""The external scaler: KEDA asks over gRPC, and gets the numbers that the last decision published.

Belongs here: KEDA's interface (`_pb`), what a trigger's metadata means (`trigger`), what is answered (`published`, `answers`),
the server, and what can be said of the ScaledObjects and HPAs that belong to it (`objects`). Does not belong here: deciding
(`scaler.core`), reading or writing Kubernetes (`scaler.cluster`), and turning ticks into figures (`scaler.runtime`). It may be
imported by `scaler.runtime` and `scaler.cli`; it and its parts alone know grpc in this package.
"""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "ERROR"
)  # read as grpc is imported; its lines about each handshake are no JSON
