"""From the pipe of the user's process to the log files."""
