"""Launches of other tools, taken as they are: Beaker's spec files, mason, gantry, OLMo-core's launch module.

Each becomes Beaker's own spec, for Beaker itself, or an experiment of windlass, for everywhere.
"""
