"""Sphinx's settings for the site of the documentation, whose pages scripts/site.py prepares (`make html`)."""

import os
import re

project = "attune"
version = release = os.environ["VERSION"]
html_title = f"attune {version}"
extensions = ["myst_parser", "breathe"]
breathe_projects = {"attune": os.environ["DOXYGEN_XML"]}
breathe_default_project = "attune"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
primary_domain = "c"
highlight_language = "none"
root_doc = "index"
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "fieldlist"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_theme = "furo"
html_static_path = ["style/site.css"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_extra_path = ["linked"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a5301c", "color-brand-content": "#a5301c"},
    "dark_css_variables": {"color-brand-primary": "#ef8f7d", "color-brand-content": "#ef8f7d"},
}
pygments_style, pygments_dark_style = "friendly", "github-dark"


def break_after_commas(app, page, template, context, doctree):
    """Problems are long words without blanks: in code between text, a line may end after a comma."""
    context["body"] = re.sub(r'<span class="pre">[^<]*</span>', lambda found: re.sub(",(?=[^<])", ",<wbr>", found[0]),
                             context.get("body", ""))


def setup(app):
    app.connect("html-page-context", break_after_commas)
