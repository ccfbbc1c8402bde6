"""Configuration of Sphinx; scripts.website runs it. Nothing here loads anything from another host."""

from windlass.core.version import VERSION

project = "windlass"
version = release = VERSION
root_doc = "README"
source_suffix = {".md": "markdown"}
extensions = ["myst_parser"]

myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 6  # as the hosts of repositories do: page.md#heading

html_theme = "furo"
html_title = f"windlass {VERSION}"
html_copy_source = False
html_show_sourcelink = False
html_permalinks_icon = "#"
html_show_copyright = False

add_module_names = False
toc_object_entries = (
    False  # Furo copies the tree of contents for every page: with all methods in it, a build takes twice as long
)
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
