"""A simulated Slurm site."""
