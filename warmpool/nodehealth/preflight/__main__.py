"""`python -m warmpool.nodehealth.preflight [options] -- COMMAND …`: looks at the GPUs, and then becomes the engine."""

from warmpool.nodehealth.preflight.command import run

if __name__ == "__main__":
    run()
