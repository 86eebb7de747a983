"""The colours of pages and pictures, each in a light and a dark form.

Pictures are drawn in the light form. On a page every colour becomes a variable of the style sheet, so that one picture
suits both schemes. Every colour of a line has a contrast of at least 3 to 1 with its background (WCAG 2.2, 1.4.11),
every colour of a text one of at least 4.5 to 1 (1.4.3).
"""

from __future__ import annotations

import re

GROUND, INK, FAINT, GRID = "#ffffff", "#1c2430", "#566273", "#dfe4ea"
GREY, STONE, BLACK = "#6b7684", "#8a817c", "#05070a"
BLUE, SKY, INDIGO, PERIWINKLE = "#0b62b0", "#2484b4", "#3b3b98", "#6672c8"
GREEN, AMBER, RED, PURPLE = "#0b7f63", "#a86a00", "#c2410c", "#8e3b8e"

_FORMS = {
    "ground": (GROUND, "#171c24"),
    "ink": (INK, "#e3e8ef"),
    "faint": (FAINT, "#a2adbb"),
    "grid": (GRID, "#333c49"),
    "grey": (GREY, "#98a4b3"),
    "stone": (STONE, "#b5aca6"),
    "black": (BLACK, "#fafcff"),
    "blue": (BLUE, "#62b0f5"),
    "sky": (SKY, "#86d3f2"),
    "indigo": (INDIGO, "#a9a9f7"),
    "periwinkle": (PERIWINKLE, "#8d9af2"),
    "green": (GREEN, "#4fd0a5"),
    "amber": (AMBER, "#f2c14e"),
    "red": (RED, "#ff8f5e"),
    "purple": (PURPLE, "#dd9add"),
}
_NAMES = {light: name for name, (light, _) in _FORMS.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def css_variables() -> str:
    """The colours as CSS variables, in both schemes."""
    light, dark = (" ".join(f"--{name}: {forms[scheme]};" for name, forms in _FORMS.items()) for scheme in range(2))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def variable(colour: str) -> str:
    """The CSS variable for a colour of the palette.

    Raises:
        KeyError: the colour is not in the palette, so it has no dark form.
    """
    return f"var(--{_NAMES[colour]})"


def themed(style: str) -> str:
    """A style in which every colour is replaced by its variable; see `variable`."""
    return _COLOUR.sub(lambda found: variable(found[0]), style)
