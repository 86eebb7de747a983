"""The configuration of the documentation site: Sphinx over the repository's own pages, so each page is one file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from blocks import ROOT, SITE

from hushstream.systems.catalogue import kinds

project = "hushstream"
author = "the authors of hushstream"
copyright = author
root_doc = "deploy/docs/index"
include_patterns = list(SITE)
# Folders that Sphinx must not search.
exclude_patterns = [".*", "build", "report", "tests", "pipeline", "schemas", "agents", "replay", "demo"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = "hushstream"
html_static_path = ["../static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_use_index = True
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "github-dark"

if set(kinds()) - {path.stem for path in (ROOT / "deploy" / "docs" / "systems").glob("*.md")}:
    raise ValueError(f"deploy/docs/systems: expected a page for each of {', '.join(kinds())}")
