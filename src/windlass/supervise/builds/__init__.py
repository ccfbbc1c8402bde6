"""Builds of environments and data on the machine that uses them, once each."""
