"""Compare what a run recorded with its jobs, and decide what to do about it."""
