"""How Sphinx makes the site: ``make docs``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from pages import gather  # noqa: E402 - beside this file

project = "inface"
author = "the inface developers"
project_copyright = "the inface developers"
release = version = installed("inface")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = "inface"
html_static_path = ["_static"]
html_css_files = ["inface.css"]

myst_heading_anchors = 3
myst_links_external_new_tab = False

# Notebooks run at every build: their numbers are those of the library as it is.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 60
nb_merge_streams = True
nb_execution_show_tb = True
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The frameworks of inface.integrations are not installed where the site is made.
autodoc_mock_imports = ["accelerate", "lightning", "skorch", "transformers"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
napoleon_use_rtype = False

# Pages that live elsewhere in the repository: copied here before every build.
gather(ROOT, DOCS)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _without_blank_ends)


def _without_blank_ends(app: Any, name: str, source: list[str]) -> None:  # noqa: ARG001 - as Sphinx calls it
    """Doctest needs a blank line before the end of a block of code; readers do not."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")
