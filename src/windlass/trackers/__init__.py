"""Experiment trackers, for training and for sweeps: W&B's runs and TensorBoard's event files."""
