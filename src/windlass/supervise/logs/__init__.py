"""Log files, written from the pipe that the user's process writes to."""
