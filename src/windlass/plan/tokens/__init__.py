"""The `${...}` tokens of commands and variables, and the shell lines around them."""
