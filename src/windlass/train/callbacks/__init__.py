"""Callbacks of the trainer: console, speed, trackers, monitors, evaluations and schedules."""
