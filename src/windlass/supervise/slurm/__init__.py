"""Slurm, as seen from within a job."""
