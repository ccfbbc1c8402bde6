"""Machines made of network namespaces on this machine, as root; for tests and demonstrations."""
