"""Builds of environments and data, each done once, on the machine that uses them."""
