"""Search spaces: the primitives, their tree, and a configuration for each number.

    space = Space({"lr": loguniform(1e-5, 1e-1), "layers": choice([2, 4, 8])})
    config, assigned = space.draw(seed, number)

`describe` and `read_space` convert to and from JSON, which is also the form under `sweep:` in a file.
"""

from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Domain, Float, Integer, NormalFloat
from windlass.tune.space.errors import RecursiveDependencyError, SpaceError
from windlass.tune.space.grammar import describe, read_space
from windlass.tune.space.primitives import (
    PRIMITIVES,
    choice,
    grid_search,
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
from windlass.tune.space.space import Space, check_same_names
from windlass.tune.space.values import from_json, import_name, imported, to_json

__all__ = [
    "PRIMITIVES",
    "Categorical",
    "Computed",
    "Domain",
    "Float",
    "Integer",
    "NormalFloat",
    "RecursiveDependencyError",
    "Space",
    "SpaceError",
    "check_same_names",
    "choice",
    "describe",
    "from_json",
    "grid_search",
    "import_name",
    "imported",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "read_space",
    "sample_from",
    "to_json",
    "uniform",
]
