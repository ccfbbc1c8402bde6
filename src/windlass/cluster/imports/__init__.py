"""Cluster files of other programs, read as ours: `import_file(path)` reads Ray's, SkyPilot's and our own."""

from windlass.cluster.imports.importing import Imported, import_file

__all__ = ["Imported", "import_file"]
