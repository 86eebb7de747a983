from __future__ import annotations

import struct

import matplotlib
import pytest

from hushstream.replay.report.replayed import drawing, view
from hushstream.replay.report.sheet import NARROW, WIDE, Drawing, Sheet, png, svg


def chunks(png: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG by type."""
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        found[png[at + 4 : at + 8]] = png[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def test_a_live_run_has_no_picture_of_content(result, live_result):
    assert [*view(result).pictures] == ["rewards"]
    assert not view(live_result).pictures


def test_equal_results_give_equal_pictures_whatever_the_users_own_settings_are(result):
    plot = drawing(result)
    once, page = png(plot, ["Seed: 3."]), svg(plot)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 10}):
        assert png(plot, ["Seed: 3."]) == once
        assert svg(plot) == page
        assert matplotlib.rcParams["font.size"] == 30


def test_pictures_carry_no_time_and_no_version(result):
    kinds = set(chunks(png(drawing(result), ["Seed: 3."])))
    assert kinds <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_a_file_has_room_for_its_provenance(result):
    plot = drawing(result)
    sizes = [struct.unpack(">II", chunks(png(plot, lines))[b"IHDR"][:8]) for lines in ([], ["Seed: 3."] * 4)]
    assert sizes[1][0] == sizes[0][0]
    assert sizes[1][1] > sizes[0][1]


def test_panels_stand_side_by_side_only_where_there_is_room():
    wide, narrow = Sheet(WIDE), Sheet(NARROW)
    for sheet, columns in ((wide, 3), (narrow, 1)):
        panels = sheet.panels(5)
        assert panels[0].get_gridspec().ncols == columns
        assert len(sheet.figure.axes) == 5


def test_a_colour_without_a_dark_form_is_refused():
    def draw(sheet):
        sheet.panels()[0].plot([0, 1], [0, 1], color="#123456")

    with pytest.raises(KeyError, match="#123456"):
        svg(Drawing("odd", "Odd", "", "", draw))
