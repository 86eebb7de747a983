"""`model show --page` draws models of the systems that say so, and refuses others before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PDAP = """
system: pdap
deployment: mall
vendors: [{name: north, items: {capacity: 2}}, {name: south, items: {capacity: 2}}]
features: {dimension: 2}
privacy: {person: unprotected}
"""


def test_a_system_whose_models_are_not_drawn_is_refused(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "mall.yaml").write_text(PDAP, encoding="utf-8")
    folder = tmp_path / "mall"
    prepared = cli("prepare", tmp_path / "mall.yaml", folder)
    assert prepared.code == 0, prepared.err
    # No broker is there: whoever asked one would be told that.
    found = cli("model", "show", "-d", folder, "-b", "127.0.0.1:1", "--page", tmp_path / "page.html")
    assert found.code != 0
    assert "--page: expected a system whose models are drawn, got pdap" in found.err
    assert not (tmp_path / "page.html").exists()
