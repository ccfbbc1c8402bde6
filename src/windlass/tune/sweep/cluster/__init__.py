"""Sweeps whose head and trials run on a cluster: launched and read from here, run on the cluster's head."""
