"""Controller of a sweep: the pure core, the journal that is its state, and the loop around them."""
