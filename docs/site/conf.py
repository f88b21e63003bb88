"""The configuration of Sphinx; `make docs` runs stage.py first, then Sphinx on what it wrote."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "src/fenchel/__init__.py").read_text(encoding="utf-8")
)

project = "fenchel"
author = "the fenchel authors"
project_copyright = "the fenchel authors"
version = release = VERSION[1] if VERSION else ""

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

myst_enable_extensions = ["attrs_inline", "attrs_block"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"
html_title = "fenchel"
html_static_path = [str(ROOT / "docs" / "site" / "static")]
html_favicon = str(ROOT / "docs" / "site" / "static" / "favicon.svg")
html_css_files = ["style.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a62a8", "color-brand-content": "#0a62a8"},
    "dark_css_variables": {"color-brand-primary": "#7cc0f5", "color-brand-content": "#7cc0f5"},
}
maximum_signature_line_length = 88
