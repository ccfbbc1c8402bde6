"""Machines that exist and that ssh reaches."""
