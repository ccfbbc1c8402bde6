"""Rewards: verifiers that score answers against the ground truth of their prompts."""
