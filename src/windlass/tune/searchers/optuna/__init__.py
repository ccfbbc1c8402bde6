"""Searchers on Optuna's samplers; nothing of Optuna is imported before a sweep begins."""
