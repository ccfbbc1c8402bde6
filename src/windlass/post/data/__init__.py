"""Rows of chats and preferences: read, mixed, rendered to tokens, prepared once, and batched."""
