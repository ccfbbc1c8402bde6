"""Controller of a sweep: the pure core, the journal that holds its state, and the main loop."""
