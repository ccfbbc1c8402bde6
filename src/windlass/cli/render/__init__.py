"""Text and JSON output about runs, sweeps, sites and verdicts."""
