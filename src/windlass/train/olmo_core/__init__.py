"""OLMo-core checkpoints and their configurations, read without OLMo-core."""
