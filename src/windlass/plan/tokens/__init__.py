"""The `${...}` tokens of commands and variables, and the shell lines they stand in."""
