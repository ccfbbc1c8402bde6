"""Slurm sites, accessed with Slurm's own commands."""
