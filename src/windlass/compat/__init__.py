"""Commands and spec files of other tools, accepted unchanged.

They are Beaker's specs, mason, gantry and OLMo-core's launch module.

Each becomes Beaker's spec, for Beaker itself, or a windlass experiment, for any site.
"""
