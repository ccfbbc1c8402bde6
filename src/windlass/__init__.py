"""windlass: one file says what to run; windlass pins it, runs it anywhere, and can prove afterwards what ran."""

__version__ = "0.1.0"
