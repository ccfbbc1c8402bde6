"""Slurm sites, through Slurm's own command line."""
