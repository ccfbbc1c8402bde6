"""The sweep's journal: written by its head, replayed to restore it, and summarized for readers."""
