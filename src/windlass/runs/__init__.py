"""Runs on this machine: their folders, index, metrics, logs and outputs, as read from journals."""
