"""Tokens (`${...}`) in commands and variables, and shell lines that contain them."""
