"""hushstream from Python: what the three calls take, what they return, and that a running loop is no hindrance."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import signal
import sys
import threading
import time
import traceback

import pandas
import polars
import pytest
from polars.testing import assert_frame_equal

from hushstream.api import evaluate, experiment, run
from hushstream.api.calls import own_options
from hushstream.replay.catalogue import SHARED
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.study import studies
from hushstream.schemas.errors import HushstreamError

SMALL = {"limit": 60, "world": {"rounds": 3}, "set": {"encoder.codes": 4}, "conditions": ("cold", "warm_private")}
RECORDS = {
    "label": "bought",
    "positive": "yes",
    "features": {"age": {"kind": "number", "range": [0, 100]}, "kind": {"kind": "category", "vocabulary": ["a", "b"]}},
    "nodes": 2,
    "public": True,
}
DECISIONS = {
    "user": "who",
    "timestamp": "at",
    "timestamp_unit": "ms",
    "features": {"old": {"kind": "number", "range": [0, 1]}, "young": {"kind": "number", "range": [0, 1]}},
    "arm": "shown",
    "arms": 2,
    "reward": "liked",
    "uniform": True,
    "data": "public",
}


@pytest.fixture(scope="module")
def played():
    """A run that was started by a coroutine, as every call in a notebook is."""

    async def cell():
        return run(**SMALL)

    return asyncio.run(cell())


def _decisions() -> dict[str, list[object]]:
    rows = range(80)
    return {
        "who": [f"u{row % 20}" for row in rows],
        "at": list(rows),
        "old": [row % 90 / 100 for row in rows],
        "young": [1 - row % 90 / 100 for row in rows],
        "shown": [row * 7 % 2 for row in rows],
        "liked": [float(row % 3 == 0) for row in rows],
    }


def test_a_run_inside_a_running_loop_is_the_run_outside_of_it(played):
    assert run(**SMALL).details.rows == played.details.rows


def test_an_interrupt_cancels_what_runs_beside_the_callers_loop_and_waits_for_its_end():
    started, ended = threading.Event(), threading.Event()

    async def endless():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    def waits():
        frames = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident])
        return any(frame.f_code is concurrent.futures.wait.__code__ for frame, _ in frames)

    def interrupt():
        # Python drops what a signal raises while a weak reference is cleared, as at a thread's start.
        started.wait()
        while not waits():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    async def cell():
        with pytest.raises(KeyboardInterrupt):
            run_to_end(endless)
        return ended.is_set()

    # A loop without handlers of its own, as a notebook's: the interrupt is raised where the main thread waits. What
    # a shell starts in the background ignores interrupts, tests in it too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        assert loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, before)


def test_what_a_coroutine_raises_beside_a_running_loop_reaches_the_caller():
    async def cell():
        run("p2b", dataset="nowhere")

    with pytest.raises(HushstreamError, match="unknown world 'nowhere'"):
        asyncio.run(cell())


def test_a_result_prints_as_a_few_lines_that_name_headline_promise_and_marks(played):
    lines = repr(played).splitlines()
    assert len(lines) <= 12
    assert str(played.headline) in lines
    assert played.headline.low < played.headline.value < played.headline.high
    assert "REPRODUCIBLE, NOT PRIVATE" in lines
    page = played._repr_html_()
    assert "<strong>p2b on synthetic</strong>" in page
    assert "REPRODUCIBLE, NOT PRIVATE" in page


def test_rows_are_the_same_data_frame_in_pandas_and_polars(played):
    for name, columns, count in (
        (None, ["condition", "users", "mean_reward", "ci95", "figures"], 2),
        ("curve", ["line", "at", "value", "ci95", "figures"], 6),
    ):
        rows, others = played.to_pandas(name), played.to_polars(name)
        assert list(rows.columns) == others.columns == columns
        assert rows.to_dict("records") == others.to_dicts()
        assert len(rows) == count
    with pytest.raises(HushstreamError, match="to_pandas: expected one of rows, curve, got 'roc'"):
        played.to_pandas("roc")


def test_a_picture_is_png_and_a_name_that_is_none_is_refused(played, tmp_path):
    assert played.plot()._repr_png_().startswith(b"\x89PNG")
    assert played.plot("rewards").save(tmp_path / "rewards.png").read_bytes() == played.plot("rewards").png
    with pytest.raises(HushstreamError, match="plot: expected one of rewards, got 'roc'"):
        played.plot("roc")


def test_saving_writes_what_the_command_line_writes(played, tmp_path):
    names = {path.name for path in played.save(tmp_path / "report")}
    assert {"results.json", "rewards.csv", "rewards.png", "index.html"} <= names


@pytest.mark.parametrize("system", ["p2b", "colin", "pdap", "pdol", "bgt"])
def test_every_option_of_a_system_has_a_meaning(system):
    fields = set(studies()[system].options.__dataclass_fields__)
    assert own_options(system).keys() == fields - set(SHARED)
    assert fields >= set(SHARED)
    assert all(meaning.endswith(".") for meaning in own_options(system).values())


def test_options_are_given_by_name_alone_and_one_that_a_system_lacks_is_refused():
    for call in (run, evaluate, experiment):
        first, *others = inspect.signature(call).parameters.values()
        assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert {one.kind for one in others} <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    with pytest.raises(HushstreamError, match=r"expected options of colin \(rounds, rounds_per_phase\); got pace"):
        run("colin", pace=1.0)


@pytest.mark.parametrize("made", [pandas.DataFrame, polars.DataFrame])
def test_a_log_in_memory_is_judged_as_its_file_is(made, tmp_path):
    polars.DataFrame(_decisions()).write_csv(tmp_path / "log.csv")
    options = {"mapping": DECISIONS, "condition": "cold", "verify": False}
    of_file = evaluate(str(tmp_path / "log.csv"), **options)
    of_frame = evaluate(made(_decisions()), **options)
    assert of_frame.to_pandas().equals(of_file.to_pandas())
    assert of_frame.plot().png.startswith(b"\x89PNG")


def test_labelled_records_in_memory_are_a_dataset_as_their_file_is(tmp_path):
    rows = [{"bought": "yes" if row % 3 else "no", "age": row, "kind": "ab"[row % 2]} for row in range(60)]
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "records.csv", index=False)
    found = [
        run("pdol", dataset=dataset, world={"mapping": RECORDS}, verify=False).to_polars()
        for dataset in (frame, tmp_path / "records.csv", str(tmp_path / "records.csv"))
    ]
    assert_frame_equal(found[0], found[1])
    assert_frame_equal(found[0], found[2])


def test_ratings_in_memory_are_a_dataset_as_their_file_is(tmp_path):
    rows = [{"who": f"u{row // 8}", "film": f"f{(row * 5) % 12}", "stars": 1 + row % 5} for row in range(240)]
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "ratings.csv", index=False)
    mapping = {"user": "who", "item": "film", "rating": "stars", "lowest": 1, "highest": 5, "public": True}
    options = {"world": {"mapping": mapping}, "verify": False, "epsilon": 3.0}
    of_frame, of_file = (run("bgt", dataset=one, **options) for one in (frame, tmp_path / "ratings.csv"))
    assert_frame_equal(of_frame.to_polars(), of_file.to_polars())
    rounds = [name for name in of_frame.to_pandas()["predicted_by"] if name.startswith("round")]
    assert len(rounds) == 3
    rmse = [row["RMSE"] for row in of_frame.details.rows.plain]
    assert of_frame.headline.value == pytest.approx(rmse[2] / rmse[3])
    assert of_frame.headline.low < of_frame.headline.value < of_frame.headline.high
    assert of_frame.plot().png.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: run(dataset=pandas.DataFrame({"a": [1]})),
            "expected the name of a world, .* got a data frame: evaluate",
        ),
        (lambda: run("pdol", dataset=pandas.DataFrame({"a": [1]})), "world: expected the mapping of the table"),
        (lambda: run(dataset=[1, 2]), "table: expected a path or a data frame, got list"),
        (lambda: evaluate(pandas.DataFrame(_decisions())), "expected a mapping with a log of your own"),
        (
            lambda: evaluate(pandas.DataFrame({"who": ["a"]}), mapping=DECISIONS),
            "data frame: missing column old, young, at, shown, liked",
        ),
        (
            lambda: evaluate(pandas.DataFrame(_decisions() | {"liked": [None] * 80}), mapping=DECISIONS),
            "data frame, row 1, column liked: expected a reward from 0 to 1",
        ),
        (lambda: experiment("p2b-fig99"), "unknown experiment 'p2b-fig99'"),
    ],
)
def test_what_cannot_be_played_is_refused_in_words(call, says):
    with pytest.raises(HushstreamError, match=says):
        call()


def test_an_experiment_is_a_result_like_any_other(tmp_path):
    found = experiment("p2b-fig3", quick=True)
    assert "evaluated targets reached" in repr(found)
    assert found.headline is None
    assert len(found.to_polars()) == len(found.to_pandas()) == len(found.details.rows)
    assert {path.suffix for path in found.save(tmp_path)} == {".csv", ".json", ".png", ".html"}
