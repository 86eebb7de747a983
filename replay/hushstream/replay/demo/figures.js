"use strict";
// Draws the state of the demo: what was released, what was spent, and the learner that can be killed.

const at = (id) => document.getElementById(id);
const say = (id, text) => { at(id).textContent = text; };
const number = (value) => value.toLocaleString("en");
const share = (value) => value.toFixed(2);
let busy = false, latest = null;

function draw(state) {
  at("rewards").hidden = !state.curve.length;
  if (!state.curve.length) return;
  const svg = at("chart"), width = svg.clientWidth, height = svg.clientHeight;
  const left = 36, right = width - 12, top = 24, bottom = height - 36;
  const points = (group) => state.curve.filter((one) => one.groups[group].rate !== null)
    .map((one) => [one.t, one.groups[group].rate, one.groups[group].ci95]);
  const groups = [["baseline", "var(--amber)", "7 4"], ["own", "var(--faint)", "2 3"], ["model", "var(--blue)", ""]];
  const end = Math.max(60, state.seconds);
  const most = Math.max(0.2, ...groups.flatMap(([group]) => points(group)).map(([, rate, ci]) => rate + ci));
  const ceiling = Math.min(1, Math.ceil(most * 10) / 10);
  const x = (seconds) => left + (right - left) * seconds / end;
  const y = (value) => bottom - (bottom - top) * Math.min(ceiling, Math.max(0, value)) / ceiling;
  const parts = [];
  for (let value = 0; value <= ceiling + 1e-9; value += ceiling > 0.5 ? 0.2 : 0.1) {
    parts.push(`<line x1="${left}" x2="${right}" y1="${y(value)}" y2="${y(value)}" stroke="var(--grid)"/>`);
    parts.push(`<text x="${left - 8}" y="${y(value) + 4}" text-anchor="end">${value.toFixed(1)}</text>`);
  }
  const step = [15, 30, 60, 120, 300, 600, 1200, 3600].find((one) => end / one <= width / 90) || 7200;
  for (let second = 0; second <= end; second += step) {
    const text = end < 180 ? `${second} s` : `${+(second / 60).toFixed(1)} min`;
    const anchor = x(second) > right - 20 ? "end" : second ? "middle" : "start";
    parts.push(`<text x="${x(second)}" y="${bottom + 22}" text-anchor="${anchor}">${text}</text>`);
  }
  for (const second of state.killed_at) {
    const side = x(second) > right - 60 ? "end" : "start";
    parts.push(`<line x1="${x(second)}" x2="${x(second)}" y1="${top}" y2="${bottom}" stroke="var(--bad)" stroke-dasharray="2 3"/>`);
    parts.push(`<text x="${x(second) + (side === "end" ? -5 : 5)}" y="${top - 8}" text-anchor="${side}" class="killed">killed</text>`);
  }
  for (const [place, [group, colour, dashes]] of groups.entries()) {
    const shown = points(group);
    const beside = 3 * (place - 1); // bars of one moment stand beside one another
    for (const [t, rate, ci] of shown) {
      parts.push(`<line x1="${x(t) + beside}" x2="${x(t) + beside}" y1="${y(rate - ci)}" y2="${y(rate + ci)}" stroke="${colour}" stroke-width="1.5"/>`);
      parts.push(`<circle cx="${x(t) + beside}" cy="${y(rate)}" r="3" fill="${colour}"/>`);
    }
    const path = shown.map(([t, rate], place) => `${place ? "L" : "M"}${(x(t) + beside).toFixed(1)} ${y(rate).toFixed(1)}`).join("");
    parts.push(`<path d="${path}" fill="none" stroke="${colour}" stroke-width="2.5" stroke-dasharray="${dashes}" stroke-linejoin="round"/>`);
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.innerHTML = parts.join("");
}

function showOutcome(state) {
  const { windows, version, lift } = state.figures;
  say("version", number(version || 0));
  say("windows", number(windows || 0));
  say("visitors", number(state.visitors));
  if (state.devices) {
    say("figure", number(windows || 0));
    say("headline", "windows of noised sums have left the shuffler. Devices answer by themselves, so nothing measures what they earn.");
    return;
  }
  if (!lift) return;
  const over = Object.entries(lift.shared_private_model_over).filter(([, found]) => found);
  if (!over.length) {
    say("headline", "Too few decisions of visitors who began with a model were counted to tell a difference from the noise.");
    return;
  }
  const signed = (value) => `${value < 0 ? "−" : "+"}${share(Math.abs(value))}`;
  say("figure", signed(over[0][1].difference));
  say("headline", "reward a visit from the shared private model: " + over.map(([control, { difference, ci95, decisions_more }]) =>
    `${signed(difference)} ± ${share(ci95)} (95 % CI) over ${lift.groups[control].shown}` +
    (decisions_more === 0 ? "" : ", no significant difference yet")).join("; ") + ".");
}

function showLearner(state) {
  const learner = state.learner;
  const away = { running: "It runs.", away: "It was killed and is restarting …", verifying: "It answers again, while everything is recomputed …" };
  const far = learner.state === "verifying" && learner.progress && learner.progress.total
    ? ` ${learner.progress.what}: ${Math.floor(100 * learner.progress.done / learner.progress.total)} %.` : "";
  say("learner", away[learner.state] + far + (state.alone ? ` ${number(state.alone)} visits got their own baseline while no learner answered.` : ""));
  at("kill").disabled = busy || learner.state !== "running";
  if (learner.equal === null) return;
  const equal = learner.verified.equal || 0, changed = learner.verified.changed || 0;
  at("verified").className = learner.equal ? "good" : "bad";
  say("verified", (learner.equal ? `Verify: equal. ${number(equal)} published records were recomputed, byte for byte`
    : `Verify: ${number(changed)} records changed, ${number(equal)} equal`) + `; no learner answered for ${learner.away_seconds} s.`);
}

function showLearned(state) {
  const { segments } = state.figures;
  if (!segments || !segments.length) return;
  say("learned", "From noised sums alone: the item with the highest expected reward in the newest model, if all other features are missing. Sure: that it is better than the second.");
  at("learned-rows").hidden = false;
  at("learned-rows").tBodies[0].replaceChildren(...segments.map((one) => {
    const row = document.createElement("tr");
    for (const text of [one.cell, one.item, share(one.reward), one.sure > 0.99 ? "> 99 %" : `${Math.round(100 * one.sure)} %`]) row.insertCell().textContent = text;
    return row;
  }));
}

function showBudget(state) {
  const { spent } = state.figures;
  if (!spent || !spent.charged.length) return;
  say("paid", `${number(spent.releases)} releases are in the ledger. One person was charged at most: ` +
    spent.charged.map((one) => `ε ${one.epsilon} for ${one.mechanism === "lift" ? "the A/B measurement" : "reports"}`).join(", ") + ".");
  at("limits").replaceChildren(...spent.limits.map((one) => {
    const item = document.createElement("li");
    item.textContent = `Limit: ε ${one.epsilon} for ${one.unit}.`;
    return item;
  }));
}

function show(state) {
  latest = state;
  say("status", `Running for ${Math.round(state.seconds)} s, ${Math.round(state.answered / Math.max(1, state.seconds))} visits a second.`);
  say("promised", state.promised);
  say("trouble", state.trouble);
  say("configuration", state.configuration);
  say("gateway", state.gateway);
  for (const one of document.querySelectorAll(".tools")) one.textContent = state.tools;
  for (const one of document.querySelectorAll(".hosted")) one.hidden = state.devices;
  for (const one of document.querySelectorAll(".device")) one.hidden = !state.devices;
  showOutcome(state);
  showLearned(state);
  showBudget(state);
  if (state.devices) return;
  showLearner(state);
  draw(state);
}

async function look() {
  try {
    const state = await (await fetch("/state.json", { cache: "no-store" })).json();
    if (!state.starting) {
      const first = latest === null;
      show(state);
      if (first) dispatchEvent(new CustomEvent("opened", { detail: state }));
    }
  } catch {
    say("status", "The demo has ended, or does not answer.");
    at("kill").disabled = true;
  }
  setTimeout(look, 1000);
}

at("kill").addEventListener("click", async () => {
  busy = at("kill").disabled = true;
  try {
    const answer = await fetch("/kill", { method: "POST", headers: { "X-Hushstream": "demo" } });
    say("trouble", answer.ok ? "" : (await answer.json()).error);
  } catch {
    say("trouble", "The demo does not answer.");
  }
  busy = false;
});
addEventListener("resize", () => { if (latest && !latest.devices) draw(latest); });
addEventListener("load", look);
