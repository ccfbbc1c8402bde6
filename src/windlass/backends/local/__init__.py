"""This machine: the user's processes are processes of the user who launched them."""
