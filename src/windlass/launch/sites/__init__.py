"""Add a site, prove it by real jobs, know what lies there."""
