"""Planning for Slurm sites."""
