"""The drill as a benchmark: one script that says what it ran on and leaves every figure behind."""
