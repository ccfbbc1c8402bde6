"""Container images: pinned by content before a launch, built once, and used by digest."""
