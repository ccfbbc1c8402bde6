"""Experiments at Slurm sites."""
