"""Sphinx configuration: Markdown pages, the API reference from docstrings, and the pictures of the figure scripts."""

import scaleout

project = "scaleout"
author = "the scaleout developers"
copyright = "2026, the scaleout developers"  # noqa: A001 - Sphinx's name
release = scaleout.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "numpydoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}  # autosummary writes .rst
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files outside docs/ are links to the repository
autodoc_typehints = "none"  # numpydoc prints the documented types
autosummary_generate = True
default_role = "code"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "furo"
html_title = f"scaleout {release}"
html_static_path: list[str] = []


def _level_of_captions(app, pagename, templatename, context, doctree):
    """Give the captions of the navigation, which Sphinx calls headings, the level without which they are none."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def _scrolled_by_keys(app, pagename, templatename, context, doctree):
    """Let keys reach what is wider than the page, which else a mouse alone can scroll: code and tables."""
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    context["body"] = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')


def setup(app):
    """Register with Sphinx, after the theme."""
    app.connect("html-page-context", _level_of_captions, priority=900)
    app.connect("html-page-context", _scrolled_by_keys, priority=900)
