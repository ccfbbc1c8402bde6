"""Behind the verb `sweep`."""
