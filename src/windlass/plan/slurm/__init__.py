"""An experiment at a Slurm site."""
