"""Domains from `windlass.tune.space`, under Ray Tune's import path."""

from windlass.tune.space.computed import Computed as Function
from windlass.tune.space.domains import Categorical, Domain, Float, Integer
from windlass.tune.space.primitives import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from windlass.tune.space.samplers import Grid, LogUniform, Normal, Quantized, Sampler, Uniform

__all__ = [
    "Categorical",
    "Domain",
    "Float",
    "Function",
    "Grid",
    "Integer",
    "LogUniform",
    "Normal",
    "Quantized",
    "Sampler",
    "Uniform",
    "choice",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]
