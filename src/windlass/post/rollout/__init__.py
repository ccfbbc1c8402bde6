"""Rollouts: engines that continue prompts with a policy's weights and return every token's log-probability."""
