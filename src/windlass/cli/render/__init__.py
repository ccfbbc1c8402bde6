"""Runs, sweeps, sites and verdicts as pages for people."""
