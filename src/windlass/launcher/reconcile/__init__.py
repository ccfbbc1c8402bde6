"""Compare a run's record with its jobs, and act on differences."""
