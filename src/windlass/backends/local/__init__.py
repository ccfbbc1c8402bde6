"""This machine: the job's processes run as the user who launched them."""
