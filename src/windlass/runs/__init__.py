"""Runs on this machine: their folders, their rows, their numbers, logs and outputs. All of it is read from the journals."""
