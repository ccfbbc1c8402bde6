"""Pure planner that decides what a launch will run."""
