"""Environments: what answers a policy between its turns, and rewards them."""
