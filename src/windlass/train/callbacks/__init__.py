"""What hangs on a trainer: console, speed, trackers, monitors, evaluations, schedules."""
