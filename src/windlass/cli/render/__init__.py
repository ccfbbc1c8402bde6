"""Text and JSON pages of runs, sweeps, sites and verdicts."""
