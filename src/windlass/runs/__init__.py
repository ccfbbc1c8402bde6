"""Runs on this machine: folders, index, metrics, logs and outputs, as read from journals."""
