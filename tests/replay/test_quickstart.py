"""The first hour: a real broker and real workers, a page, a learner that is killed and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

from hushstream.agents.worker.deployment import load, parse_config, prepare, read_config
from hushstream.features.schema import declare
from hushstream.replay.quickstart.page import MARK, serve
from hushstream.replay.quickstart.run import learned, prepare_folder
from hushstream.replay.worlds.shop import DECLARATION, ITEMS
from hushstream.schemas.errors import HushstreamError
from patience import Patience, patience

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
PATIENCE_SECONDS = 120


@pytest.mark.parametrize("name", ["fast.yaml", "shop.yaml"])
def test_the_examples_are_deployments(name, tmp_path):
    config = read_config(EXAMPLES / name)
    system = prepare(tmp_path / "made", config)
    assert load(tmp_path / "made").digest == system.digest
    assert system.promises.together.took_part.epsilon_micro == 1_500_000
    assert system.promises.together.which.epsilon_micro == 3_000_000


def test_the_page_shows_the_shop_that_ships():
    shown = re.search(
        r"```yaml\n(# shop.yaml\n.*?)```",
        (ROOT / "deploy" / "docs" / "your-own-kafka.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert shown is not None
    assert parse_config(yaml.safe_load(shown[1])) == read_config(EXAMPLES / "shop.yaml")


def test_the_folder_keeps_what_was_edited_and_makes_the_deployment_anew(tmp_path):
    first = prepare_folder(tmp_path)
    path = tmp_path / "fast.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("{capacity: 6}", "{capacity: 5}"), encoding="utf-8")
    second = prepare_folder(tmp_path)
    assert (first.core.config.arms, second.core.config.arms) == (6, 5)
    assert first.digest != second.digest


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / "mine").touch()
    with pytest.raises(HushstreamError, match="expected a folder that a quickstart made, or none"):
        prepare_folder(tmp_path)
    assert (tmp_path / "deployment" / "mine").exists()
    (tmp_path / "fast.yaml").write_text(
        "system: pdol\ndeployment: d\nnodes: 2\nfeatures: {dimension: 3}\n", encoding="utf-8"
    )
    with pytest.raises(HushstreamError, match="expected a hosted deployment of p2b, got pdol"):
        prepare_folder(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "  hour: {kind: time_of_day}\n",
            "  hour: {kind: boolean}\n",
            "country: category, age: number, hour: time_of_day",
        ),
        ("  hour: {kind: time_of_day}\n", "  mood: {kind: boolean}\n", "features that the simulated visitors have"),
        ("{capacity: 6}", "{capacity: 7}", "items.capacity: expected at most the shop's 6, got 7"),
    ],
)
def test_what_the_simulated_visitors_cannot_tell_is_refused(tmp_path, old, new, said):
    text = (EXAMPLES / "fast.yaml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "fast.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(HushstreamError) as caught:
        prepare_folder(tmp_path)
    assert said in str(caught.value)


def test_what_was_learned_is_told_by_the_names_of_values_and_items():
    """A model that likes one item in one country, and another one with one interest."""
    schema = declare(DECLARATION)
    names, cells = schema.cell_names(), schema.cells + 1
    means, variances = np.full((len(ITEMS), cells), 0.0), np.full((len(ITEMS), cells), 1e-6)
    means[:, 0] = 0.1
    means[0, 0] = 0.101
    means[5, 1 + names.index("country: it")] = 0.3
    means[3, 1 + names.index("interests: reading")] = 0.5
    rows = learned(schema, {"cells": cells, "means": means.tobytes(), "variances": variances.tobytes()}, ITEMS)
    found = {(one["feature"], one["value"]): one for one in rows}
    assert found["country", "it"]["item"] == "sunglasses"
    assert found["country", "it"]["chance"] == pytest.approx(0.4)
    assert found["country", "it"]["sure"]
    assert found["interests", "reading"]["item"] == "novel"
    others = [one for key, one in found.items() if key not in {("country", "it"), ("interests", "reading")}]
    assert {one["item"] for one in others} == {"running shoes"}
    assert not any(one["sure"] for one in others)
    assert len(found) == 5 + 3 + 3 + 4


class Nothing:
    """What is shown where nothing runs."""

    def __init__(self):
        self.kills = 0

    def state(self):
        return {"seconds": 1.0}

    async def kill(self):
        self.kills += 1
        if self.kills > 1:
            raise HushstreamError("it is away")


def ask(address, method="GET", **headers):
    """Status, content type and body."""
    request = urllib.request.Request(
        address, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


async def test_the_button_is_for_this_page_alone_and_says_what_is_wrong():
    shown = Nothing()
    async with serve(0) as page:
        assert json.loads((await asyncio.to_thread(ask, f"{page.address}/state.json"))[2]) == {"starting": True}
        page.shows(shown)
        status, kind, html = await asyncio.to_thread(ask, page.address)
        assert (status, kind) == (200, "text/html; charset=utf-8")
        # Nothing comes from outside: no address, no import.
        assert not re.search(r"https?://|@import|<link[^>]+href=\"(?!data:)|src=", html)
        for headers in ({}, {"X_Hushstream": "another"}):
            assert (await asyncio.to_thread(ask, f"{page.address}/kill", "POST", **headers))[0] == 403
        assert (await asyncio.to_thread(ask, f"{page.address}/state.json", Host="evil.example:80"))[0] == 403
        assert shown.kills == 0
        button = {MARK: "quickstart"}
        assert (await asyncio.to_thread(ask, f"{page.address}/kill", "POST", **button))[0] == 202
        status, _, body = await asyncio.to_thread(ask, f"{page.address}/kill", "POST", **button)
        assert (status, json.loads(body)) == (409, {"error": "it is away"})


async def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HushstreamError, match=f"expected a free port on 127.0.0.1, got {port}"):
            async with serve(port):
                pass


def _state(address):
    return json.loads(ask(f"{address}/state.json")[2])


def _until(address, holds):
    """The first state of which ``holds`` is true; events are waited for, and the patience is for a hang alone."""
    waiting = Patience(PATIENCE_SECONDS)
    while True:
        state = _state(address)
        if not state.get("starting") and holds(state):
            return state
        assert not waiting.over, state
        time.sleep(0.3)


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_learner_comes_back_what_it_published_is_equal_and_an_end_leaves_no_process(tmp_path):
    # Some 25 s on a quiet core: the first hour is worth it, and no other test runs it.
    (tmp_path / "q").mkdir()
    small = (EXAMPLES / "fast.yaml").read_text(encoding="utf-8").replace("window_units: 300", "window_units: 30")
    (tmp_path / "q" / "fast.yaml").write_text(small, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "hushstream.cli",
        "quickstart",
        str(tmp_path / "q"),
        "--port",
        "0",
        "--visitors",
        "30",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as running:
        try:
            assert running.stdout is not None
            lines = iter(running.stdout.readline, "")
            address = next(found[0] for line in lines if (found := re.findall(r"http://127\.0\.0\.1:\d+", line)))
            begun = _until(address, lambda state: state["published"].get("crowds", 0) >= 1 and state["version"] >= 1)
            assert begun["budget"]["ok"]
            assert {paid["mechanism"]: paid["epsilon"] for paid in begun["budget"]["paid"]}["linear-sums"] == 1.0
            assert {one["feature"] for one in begun["learned"]} == set(DECLARATION)
            assert {one["item"] for one in begun["learned"]} <= set(ITEMS)
            before = _processes(tmp_path)
            assert ask(f"{address}/kill", "POST", **{MARK: "quickstart"})[0] == 202
            back = _until(address, lambda state: state["learner"]["equal"] is not None)
            assert back["learner"]["equal"], back["learner"]
            assert back["learner"]["verified"]["equal"] > 0
            assert back["learner"]["verified"]["uncheckable"] == 0
            progress = back["learner"]["progress"]
            assert progress["done"] == progress["total"] > 0
            assert progress["what"] == "recomputing what was published"
            after = _processes(tmp_path)
            assert len(before) == len(after) == 4
            assert len(before - after) == 1
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(patience(PATIENCE_SECONDS)) == 0
    assert not _processes(tmp_path)


def _processes(folder):
    """The broker and the workers of a deployment below this folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if str(folder).encode() in command and b"quickstart\0" not in command:
            found.add(int(entry.name))
    return found
