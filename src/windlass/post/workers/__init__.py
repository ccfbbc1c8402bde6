"""Engines in other processes and on other nodes: the client, the process, and how they meet."""
