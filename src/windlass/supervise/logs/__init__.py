"""Log files, written from the pipe of the user's process."""
