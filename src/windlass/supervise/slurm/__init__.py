"""Slurm, asked from within a job."""
