"""Requests of a client to a site over ssh."""
