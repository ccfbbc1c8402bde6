"""What decides: the pure core, the journal that is its state, and the loop around them; knows protocols only."""
