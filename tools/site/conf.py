# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for tools/docs, which copies pages and writes the reference for it."""

project = "Tessera"
copyright = "The Tessera authors"  # the licence is Apache-2.0
root_doc = "index"

extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto", "tree"]  # SOURCE of pages.py
smartquotes = False
default_role = None
# Blocks of pages are parts of programs, and forms such as "[batch, ...]".
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "cpp"

html_theme = "furo"
html_title = "Tessera"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = True
# Namespaces that the index does not sort by.
cpp_index_common_prefix = ["tessera::", "tessera::ops::"]
pygments_style = "friendly"
