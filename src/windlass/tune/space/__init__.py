"""Search spaces: the primitives, the tree that they form, and a configuration for each number.

    space = Space({"lr": loguniform(1e-5, 1e-1), "layers": choice([2, 4, 8])})
    config, assigned = space.draw(seed, number)

`describe` and `read_space` convert to and from JSON, which is also the form under `sweep:` in a file.
"""

from windlass.tune.errors import SpaceError
from windlass.tune.space.domains import Categorical, Domain, Float, Integer, NormalFloat
from windlass.tune.space.space import Space

__all__ = ["Categorical", "Domain", "Float", "Integer", "NormalFloat", "Space", "SpaceError"]
