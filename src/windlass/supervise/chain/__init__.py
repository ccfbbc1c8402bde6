"""The scheduler as a running job sees it, and the chain of jobs that one task needs."""
