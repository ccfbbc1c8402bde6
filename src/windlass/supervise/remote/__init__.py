"""What a client asks of a site over ssh."""
