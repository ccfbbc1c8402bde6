"""OLMo-core's checkpoints and their configurations, read without OLMo-core."""
