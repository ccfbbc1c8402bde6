"""Implementation of the verb `sweep`."""
