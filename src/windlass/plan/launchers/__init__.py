"""Launchers: each is a pure function that returns the command and variables of a replica.

Rank and leader address remain tokens (`${rank}`, `${leader.address}`), so that all replicas have the same text.
"""
