"""Launches of other tools, unchanged: Beaker's spec files, mason, gantry, OLMo-core's launch module.

Each becomes Beaker's spec, for Beaker itself, or a windlass experiment, for any site.
"""
