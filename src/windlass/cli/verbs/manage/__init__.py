"""Verbs for what runs need: data, sites, images, secrets, and this machine."""
