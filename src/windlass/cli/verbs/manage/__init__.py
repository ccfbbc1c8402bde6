"""Verbs for data, sites, images, secrets and this machine."""
