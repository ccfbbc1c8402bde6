"""Checkpoints that torch's distributed checkpointing wrote."""
