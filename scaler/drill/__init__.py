"""The burst drill: a rehearsed burst against real processes, with figures and a verdict.

Belongs here: scenarios (the YAML, the schedule that follows from it), the open-loop load, running `emberpool local` as a
child for each arm, or taking a cluster as it is, reading what happened, figures, verdict and report. Does not belong here: anything that decides or
serves; the drill knows the product only as a user does, through its command line, its HTTP and its state directory.
May be imported by `scaler.cli`. matplotlib is imported by `scaler.drill.plots` alone, and lazily: it is the extra [drill].
"""

from scaler.drill.arms import COMPARED, ArmName
from scaler.drill.child import Endpoints
from scaler.drill.run import DrillOptions, DrillResult, run_drill

__all__ = ["COMPARED", "ArmName", "DrillOptions", "DrillResult", "Endpoints", "run_drill"]
