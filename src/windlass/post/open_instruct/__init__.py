"""Import of command lines of open-instruct."""
