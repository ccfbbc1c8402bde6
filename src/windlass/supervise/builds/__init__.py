"""Build environments and data on the machine that uses them, once."""
