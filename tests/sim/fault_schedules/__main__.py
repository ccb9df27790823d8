"""`python -m tests.sim.fault_schedules`: many schedules, spread over processes."""

from tests.sim.fault_schedules.many import main

main()
