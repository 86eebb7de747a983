from __future__ import annotations

import math
import struct

import matplotlib
import pytest

from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee, tuples_guarantee
from hushstream.replay.report.results import StatedGuarantee
from hushstream.replay.report.sheet import NARROW, WIDE, Drawing, Sheet, png, svg
from hushstream.replay.studies.p2b.report.plots import draw_epsilon, draw_noise, plots


def chunks(png: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG by type."""
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        found[png[at + 4 : at + 8]] = png[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def test_a_live_run_has_no_picture_of_content(result, live_result):
    assert [plot.name for plot in plots(result)] == ["rewards", "noise", "epsilon"]
    assert [plot.name for plot in plots(live_result)] == ["epsilon"]


def test_equal_results_give_equal_pictures_whatever_the_users_own_settings_are(result):
    plot = plots(result)[0]
    once, page = png(plot, ["Seed: 3."]), svg(plot)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 10}):
        assert png(plot, ["Seed: 3."]) == once
        assert svg(plot) == page
        assert matplotlib.rcParams["font.size"] == 30


def test_pictures_carry_no_time_and_no_version(result):
    kinds = set(chunks(png(plots(result)[2], ["Seed: 3."])))
    assert kinds <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_a_file_has_room_for_its_provenance(result):
    plot = plots(result)[0]
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


def drawn_curves(result):
    """The lines of the epsilon picture by label: (x, y)."""
    sheet = Sheet(WIDE)
    draw_epsilon(result, sheet)
    return {line.get_label(): line.get_data() for line in sheet.figure.axes[0].lines}


def test_the_epsilon_picture_holds_figure_3_and_the_runs_own_point(make_result):
    stated = StatedGuarantee.of(tuples_guarantee(threshold=50, sampling=0.5))
    curves = drawn_curves(make_result(privacy=stated, release_mode="tuples", sampling=0.5))
    chances, epsilons = curves["sampling alone: -ln(1-p)"]
    assert [math.log(1 / (1 - p)) for p in chances] == pytest.approx(list(epsilons))
    point = next(data for label, data in curves.items() if label.startswith("this run"))
    assert (point[0][0], point[1][0]) == (0.5, pytest.approx(math.log(2), abs=2e-6))


def test_the_curve_of_the_runs_noise_passes_through_its_point(make_result):
    stated = StatedGuarantee.of(slot_sums_guarantee(epsilon=2, sampling=0.25))
    curves = drawn_curves(make_result(privacy=stated, sampling=0.25))
    chances, epsilons = curves["this run's noise"]
    # Amplification by sampling, from the epsilon of the noise alone.
    assert list(epsilons) == pytest.approx([math.log1p(p * math.expm1(2)) for p in chances], abs=1e-5)


def test_the_noise_picture_shows_every_difference_of_released_and_exact(result):
    sheet = Sheet(WIDE)
    draw_noise(result.cells, sheet)
    ones, zeros = (group.get_offsets() for group in sheet.figure.axes[0].collections)
    counts = [cell.exact_ones + cell.exact_zeros for cell in result.cells]
    for found, part in ((ones, "ones"), (zeros, "zeros")):
        differences = [getattr(cell, f"noised_{part}") - getattr(cell, f"exact_{part}") for cell in result.cells]
        assert {tuple(point) for point in found} == set(zip(counts, differences, strict=True))
