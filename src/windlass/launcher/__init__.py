"""Launch, reconcile, follow, stop and retry runs. No windlass process has to keep running."""
