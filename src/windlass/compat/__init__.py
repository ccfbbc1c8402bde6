"""What people bring from other launchers, taken as it is: Beaker's spec files, mason, gantry, OLMo-core's launch module.

Each becomes Beaker's own spec, for Beaker itself, or an experiment of windlass, for everywhere.
"""
