"""Put what a run's jobs need in its place: checkout, environment, image, prepared data."""
