"""Planner: decides what a launch will run, without side effects."""
