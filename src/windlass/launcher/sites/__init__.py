"""Sites: addition, checks with real jobs, and paths."""
