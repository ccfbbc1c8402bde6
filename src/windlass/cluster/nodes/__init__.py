"""Nodes of a cluster as the client reaches them over shells: agents, reports, commands, files."""
