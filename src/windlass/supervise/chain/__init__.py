"""The scheduler as seen from a running job, and the chain of jobs that run a task."""
