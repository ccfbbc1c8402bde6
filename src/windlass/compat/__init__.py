"""Commands and spec files of other tools, accepted unchanged: Beaker's specs, mason, gantry, OLMo-core's launch
module.

Each becomes Beaker's spec, for Beaker itself, or a windlass experiment, for any site.
"""
