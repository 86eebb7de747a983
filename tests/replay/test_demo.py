"""The live demo: a real broker, workers and a gateway, a page, a learner that is killed and comes back."""

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
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from hushstream.agents.worker.deployment import load, prepare, read_config
from hushstream.replay.demo.live import LiveOptions, prepare_folder, serve
from hushstream.replay.demo.page import MARK, MARKED, application, bundle_of, serving
from hushstream.replay.worlds.shop import DECLARATION, ITEMS
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.plan import warnings
from patience import Patience, patience

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
PATIENCE_SECONDS = 120


@pytest.mark.parametrize("name", ["demo.yaml", "shop.yaml"])
def test_the_examples_are_deployments(name, tmp_path):
    config = read_config(EXAMPLES / name)
    system = prepare(tmp_path / "made", config)
    assert load(tmp_path / "made").digest == system.digest
    assert system.guarantee().together.zero_out.epsilon_micro == 1_500_000
    assert system.guarantee().together.which.epsilon_micro == 3_000_000


@pytest.mark.parametrize("name", ["demo.yaml", "devices.yaml"])
def test_reports_of_the_demo_wait_for_rewards_and_one_that_would_not_is_said(name):
    with as_file(files("hushstream.replay.demo") / name) as path:
        config = read_config(path)
    early = replace(config, slot=replace(config.slot, settle_seconds=2))
    said = "a report leaves 2 to 4 s after its last visit, and a reward may take 10 s"
    assert sum(said in one.text for one in warnings(early)) == 1
    assert not any("a report leaves" in one.text for one in warnings(config))


def test_the_folder_keeps_what_was_edited_and_makes_the_deployment_anew(tmp_path):
    first = prepare_folder(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("{capacity: 6, ", "{capacity: 5, "), encoding="utf-8")
    second = prepare_folder(tmp_path)
    assert (first.core.config.arms, second.core.config.arms) == (6, 5)
    assert first.digest != second.digest


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / "mine").touch()
    with pytest.raises(HushstreamError, match="expected a folder that the demo made, or none"):
        prepare_folder(tmp_path)
    assert (tmp_path / "deployment" / "mine").exists()
    (tmp_path / "demo.yaml").write_text(
        "system: pdol\ndeployment: d\nnodes: 2\nfeatures: {dimension: 3}\n", encoding="utf-8"
    )
    with pytest.raises(HushstreamError, match="expected a deployment of p2b of the kind hosted, got pdol"):
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
        ("{capacity: 6, named: true}", "{capacity: 6}", "items.named: expected true"),
    ],
)
def test_what_the_simulated_visitors_cannot_tell_is_refused(tmp_path, old, new, said):
    text = (EXAMPLES / "demo.yaml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "demo.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(HushstreamError) as caught:
        prepare_folder(tmp_path)
    assert said in str(caught.value)


def test_devices_get_a_deployment_of_their_own_kind(tmp_path):
    system = prepare_folder(tmp_path, devices=True)
    assert system.core.config.kind == "edge"
    (tmp_path / "demo.yaml").write_text((tmp_path / "devices.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(HushstreamError, match="expected a deployment of p2b of the kind hosted, got p2b \\(edge\\)"):
        prepare_folder(tmp_path)


class Nothing:
    """What is shown where nothing runs."""

    def __init__(self):
        self.kills = 0

    def state(self):
        return {"seconds": 1.0}

    def agreement(self):
        return b""

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
    async with serving(application(shown, "http://127.0.0.1:1"), 0) as address:
        status, kind, html = await asyncio.to_thread(ask, address)
        assert (status, kind) == (200, "text/html; charset=utf-8")
        # Nothing comes from outside but by calls to the gateway: no other address, no import.
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
        assert policy is not None
        assert policy[1] == (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self' http://127.0.0.1:1"
        )
        body = html.replace(policy[1], "")
        assert not re.search(r"https?://|@import|<link[^>]+href=\"(?!data:)|src=\"(?!/)", body)
        for name in re.findall(r'src="(/[^"]+)"', body):
            assert (await asyncio.to_thread(ask, address + name))[0] == 200
        for headers in ({}, {"X_Hushstream": "another"}):
            assert (await asyncio.to_thread(ask, f"{address}/kill", "POST", **headers))[0] == 403
        assert (await asyncio.to_thread(ask, f"{address}/state.json", Host="evil.example:80"))[0] == 403
        assert (await asyncio.to_thread(ask, f"{address}/agreement.json"))[0] == 503
        assert shown.kills == 0
        button = {MARK: MARKED}
        assert (await asyncio.to_thread(ask, f"{address}/kill", "POST", **button))[0] == 202
        status, _, said = await asyncio.to_thread(ask, f"{address}/kill", "POST", **button)
        assert (status, json.loads(said)) == (409, {"error": "it is away"})


@pytest.mark.parametrize("flag", ["port", "gateway_port"])
async def test_a_port_that_is_taken_is_named_with_the_flag_that_moves_it(flag, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = LiveOptions(folder=tmp_path, **{"port": 0, "gateway_port": 0, flag: port})
        said = f"--{flag.replace('_', '-')}: expected a free port on 127.0.0.1, got {port}"
        with pytest.raises(HushstreamError, match=said):
            await serve(options, print)


def test_what_devices_need_and_is_not_there_is_named(tmp_path, monkeypatch):
    with pytest.raises(HushstreamError, match="--devices: expected the devices' package at"):
        bundle_of(tmp_path)
    (tmp_path / "package.json").touch()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HushstreamError, match="--devices: expected Node with npm"):
        bundle_of(tmp_path)


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
    # Some 25 s on a quiet core: the demo is worth it.
    (tmp_path / "q").mkdir()
    small = (EXAMPLES / "demo.yaml").read_text(encoding="utf-8").replace("window_units: 300", "window_units: 30")
    (tmp_path / "q" / "demo.yaml").write_text(small, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "hushstream.cli",
        "demo",
        "--serve",
        "--folder",
        str(tmp_path / "q"),
        "--port",
        "0",
        "--gateway-port",
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
            begun = _until(address, lambda state: state["figures"].get("version", 0) >= 1)
            found = begun["figures"]
            assert found["windows"] >= 1
            assert found["spent"]["ok"]
            assert {one["mechanism"]: one["epsilon"] for one in found["spent"]["charged"]}["linear-sums"] == 1.0
            assert {one["cell"].partition(":")[0] for one in found["segments"]} == set(DECLARATION)
            assert {one["item"] for one in found["segments"]} <= set(ITEMS)
            before = _processes(tmp_path)
            assert ask(f"{address}/kill", "POST", **{MARK: MARKED})[0] == 202
            back = _until(address, lambda state: state["learner"]["equal"] is not None)
            assert back["learner"]["equal"], back["learner"]
            assert back["learner"]["verified"]["equal"] > 0
            assert back["learner"]["verified"]["uncheckable"] == 0
            progress = back["learner"]["progress"]
            assert progress["done"] == progress["total"] > 0
            assert progress["what"] == "recomputing journal records"
            after = _processes(tmp_path)
            assert len(before) == len(after) == 5
            assert len(before - after) == 1
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(patience(PATIENCE_SECONDS)) == 0
    assert not _processes(tmp_path)


def _processes(folder):
    """The broker, the workers and the gateway of a deployment below this folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if str(folder).encode() in command and b"demo\0" not in command:
            found.add(int(entry.name))
    return found
