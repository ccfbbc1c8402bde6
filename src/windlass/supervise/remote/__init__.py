"""Requests from a client to a site over ssh."""
