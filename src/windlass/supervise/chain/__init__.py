"""Scheduler as a running job sees it, and the chain of jobs of a task."""
