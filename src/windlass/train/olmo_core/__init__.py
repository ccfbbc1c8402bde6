"""What OLMo-core left behind: its checkpoints and their configurations; OLMo-core itself is not needed."""
