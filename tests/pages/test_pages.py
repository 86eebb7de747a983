"""Pages look as they did: in a real browser, wide and narrow, light and dark.

Two promises, for a page of each kind. Its *layout* has no fault (`layout.js`): nothing leaves the screen, its box or
its picture, no text of a picture lies on another, all text has the contrast and the size that can be read. And its
*picture* is that of the reference, in fonts that are the same on every machine. Pictures are compared at a third of
their size in squares of 4 by 4: a square differs if a channel's mean does by more than `DIFFERS` of 255, and at most
`MOST_SQUARES` of all may. Hinting and anti-aliasing differ by less; a line of text or of a plot that moves or goes
differs in more, which the last test tries.

After a wanted change: ``HUSHSTREAM_NEW_REFERENCES=1 pytest tests/pages``, then look at every changed file.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from modules import module_at
from PIL import Image

from browser import Browser, browser, chromium, with_known_fonts

HERE = Path(__file__).parent
REFERENCES = HERE / "references"
LAYOUT = (HERE / "layout.js").read_text(encoding="utf-8")
WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
SCALE, SQUARE, DIFFERS, MOST_SQUARES = 1 / 3, 4, 24, 0.0005
COLOURS = 128

pytestmark = pytest.mark.slow

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


SPECIMENS = module_at(HERE / "specimens.py", "hushstream_test_specimens").SPECIMENS


def _pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=np.float64)


def differing_share(found: np.ndarray, wanted: np.ndarray) -> float:
    """The share of squares that differ; 1 where the sizes do."""
    if found.shape != wanted.shape:
        return 1.0
    rows, columns = (length // SQUARE for length in found.shape[:2])
    squares = [
        one[: rows * SQUARE, : columns * SQUARE].reshape(rows, SQUARE, columns, SQUARE, 3).mean(axis=(1, 3))
        for one in (found, wanted)
    ]
    return float((np.abs(squares[0] - squares[1]).max(axis=2) > DIFFERS).mean())


def _reduced(png: bytes) -> bytes:
    target = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE).save(target, format="PNG", optimize=True)
    return target.getvalue()


async def _look(tab: Browser, text: str, folder: Path, name: str, faults: list[str]) -> dict[str, bytes]:
    """A picture for each width and scheme; faults of the layout are added to a list."""
    path = folder / f"{name}.html"
    path.write_text(with_known_fonts(text), encoding="utf-8")
    found = {}
    for width in WIDTHS:
        for scheme in SCHEMES:
            await tab.open(path, width, scheme)
            shown = f"{name}-{width}-{scheme}"
            faults += [f"{shown}: {fault}" for fault in await tab.evaluate(LAYOUT)]
            found[shown] = await tab.picture(SCALE)
    return found


@pytest.mark.process
@needs_chromium
async def test_every_kind_of_page_looks_as_its_reference_and_its_layout_has_no_fault(tmp_path):
    faults: list[str] = []
    pictures: dict[str, bytes] = {}
    async with browser(tmp_path / "profile") as tab:
        for name, make in SPECIMENS.items():
            pictures |= await _look(tab, make(), tmp_path, name, faults)
    if os.environ.get("HUSHSTREAM_NEW_REFERENCES") == "1":
        for name, png in pictures.items():
            (REFERENCES / f"{name}.png").write_bytes(_reduced(png))
    for name, png in pictures.items():
        share = differing_share(_pixels(png), _pixels((REFERENCES / f"{name}.png").read_bytes()))
        if share > MOST_SQUARES:
            (tmp_path / f"{name}.png").write_bytes(png)
            faults.append(f"{name}: {share:.2%} of it differs from its reference; see {tmp_path / name}.png")
    assert not faults, "\n".join(faults)


MUTANTS = {
    "tiles below one another": (".tiles { display: grid;", ".tiles { display: block;", ""),
    "faint text": ("--faint: #566273", "--faint: #a9b3bf", "has a contrast of"),
    "a wide table": (
        "table { border-collapse: collapse; width: 100%;",
        "table { width: 900px;",
        "does not fit into its",
    ),
    "another colour of a line": ("stroke: var(--red)", "stroke: var(--green)", ""),
    "a shrunk picture": ('class="narrow" role', 'class="narrow" style="width: 200px" role', "pixels high in a picture"),
}
"""What is changed, to what, and the fault that the layout then has; "" where the picture alone shows it."""


@pytest.mark.process
@needs_chromium
async def test_a_page_that_looks_otherwise_is_found(tmp_path):
    text = SPECIMENS["p2b"]()
    async with browser(tmp_path / "profile") as tab:
        for mutant, (before, after, fault) in MUTANTS.items():
            assert before in text, mutant
            faults: list[str] = []
            found = await _look(tab, text.replace(before, after), tmp_path, "p2b", faults)
            shares = [
                differing_share(_pixels(png), _pixels((REFERENCES / f"{name}.png").read_bytes()))
                for name, png in found.items()
            ]
            assert max(shares) > MOST_SQUARES, mutant
            assert any(fault in one for one in faults) if fault else not faults, f"{mutant}: {faults}"


def test_the_references_are_those_of_the_pages_and_small():
    wanted = {f"{name}-{width}-{scheme}.png" for name in SPECIMENS for width in WIDTHS for scheme in SCHEMES}
    found = {path.name: path.stat().st_size for path in REFERENCES.iterdir()}
    assert set(found) == wanted
    assert sum(found.values()) < 2_000_000


@pytest.mark.parametrize("name", ["p2b", "experiment", "statement", "evaluation"])
def test_equal_figures_give_equal_pages(name):
    assert SPECIMENS[name]() == SPECIMENS[name]()
