"use strict";

const field = (id) => document.getElementById(id);
const run = Date.now();
let shop = null; // the last state of the shop
let offer = null; // the offer on the screen
let visits = 0;
let bought = 0;
let probed = ""; // the model version and the shelf of the current table
let probes = 0;

async function ask(call, body) {
  const answer = await fetch(`${shop.gateway}/v1/${call}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.code);
  return found;
}

const titles = new Map(); // by id, of every item that was on the shelf at some time
const titleOf = (item) => titles.get(item) ?? item;

const who = () => ({ country: field("country").value, age: field("age").value });
const nameOf = (kind) => `page-${run}-${kind.country}-${kind.age}`;

async function show() {
  for (const id of ["buy", "next"]) field(id).disabled = true;
  const kind = who();
  visits += 1;
  try {
    const found = await ask("decide", {
      event_id: `${nameOf(kind)}-${visits}`,
      user: nameOf(kind),
      context: kind,
      baseline: shop.shelf[0]?.item,
    });
    offer = { ...found, kind };
    field("item").textContent = titleOf(found.item);
    field("why").textContent = found.logged
      ? `Model version ${found.model_version} chose it, with probability ${found.propensity.toFixed(2)}.`
      : "No learner answers now: this is the shop's own choice, and nothing is learned from it.";
    if (found.logged) await ask("shown", { event_id: found.event_id });
    field("buy").disabled = !found.logged;
  } catch (error) {
    offer = null;
    field("item").textContent = "The shop does not answer.";
    field("why").textContent = error.message;
  }
  field("next").disabled = false;
  field("you").textContent = `You bought ${bought} of ${visits - 1} that you saw before.`;
}

async function buy() {
  field("buy").disabled = true;
  try {
    await ask("reward", { event_id: offer.event_id, reward: 1 });
    bought += 1;
  } catch (error) {
    field("why").textContent = error.message;
  }
  await show();
}

// Requests a decision for a new visitor of each kind, to see the shared model. None is shown, so nothing is learned.
async function probe(version, made) {
  probed = made;
  probes += 1;
  const rows = [];
  for (const country of shop.countries) {
    for (const age of shop.ages) {
      const name = `new-${run}-${country}-${age}-${probes}`;
      const found = await ask("decide", { event_id: name, user: name, context: { country, age } });
      const row = document.createElement("tr");
      for (const text of [`${country}, ${age}`, titleOf(found.item)]) {
        row.appendChild(document.createElement("td")).textContent = text;
      }
      rows.push(row);
    }
  }
  field("shown").replaceChildren(...rows);
  field("since").textContent = version ? `By model version ${version}.` : "Before the first model: by chance.";
}

// The catalogue belongs to the application, so the shop's own server changes it; the gateway only shows it.
async function change(call, body) {
  const answer = await fetch(`/items/${call}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const found = await answer.json();
  field("refused").textContent = answer.ok ? "" : found.error;
  if (answer.ok) stock(found);
}

function stock(state) {
  shop = state;
  const shelf = state.shelf.map((one) => {
    titles.set(one.item, one.title || one.item);
    const row = document.createElement("li");
    const made = one.country ? ` (for ${one.country}, ${one.age})` : "";
    row.appendChild(document.createElement("span")).textContent = titleOf(one.item) + made;
    const button = row.appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = "Withdraw";
    button.setAttribute("aria-label", `Withdraw ${titleOf(one.item)}`);
    button.addEventListener("click", () => change("withdraw", { item: one.item }));
    return row;
  });
  const words = shelf.map((row) => row.textContent).join();
  if (field("shelf").dataset.words === words) return; // otherwise a button would vanish while it is pressed
  field("shelf").dataset.words = words;
  field("shelf").replaceChildren(...shelf);
}

function drawn(name, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  if (text) found.textContent = text;
  return found;
}

function draw(state) {
  const height = (share) => 190 - 180 * share;
  const step = 590 / Math.max(state.expected_bins - 1, 1);
  const full = state.bins.filter(([count]) => count > 0);
  const points = full.map(([count, sold], at) => `${5 + at * step},${height(sold / count)}`);
  const marks = [["everybody's favourite", state.best], ["by chance", state.chance]];
  field("curve").replaceChildren(
    ...marks.flatMap(([text, share]) => [
      drawn("line", { class: "mark", x1: 0, x2: 600, y1: height(share), y2: height(share) }),
      drawn("text", { x: 8, y: height(share) - 5 }, text),
    ]),
    drawn("polyline", { class: "curve", points: points.join(" ") }),
  );
  const [count, sold] = full.length ? full[full.length - 1] : [0, 0];
  field("learned").textContent =
    `${state.visits} of ${state.expected_visits} visits; model version ${state.version}; ` +
    `of the last ${count} visits ${count ? Math.round((100 * sold) / count) : 0} % bought.`;
}

async function look() {
  try {
    const state = await (await fetch("/state.json")).json();
    if (state.open) {
      if (shop) stock(state);
      else await open(state);
      draw(state);
      const made = [state.version, ...state.shelf.map((one) => one.item)].join();
      if (made !== probed) await probe(state.version, made);
    }
  } catch (error) {
    field("learned").textContent = "The shop is closed.";
  }
  setTimeout(look, 1000);
}

async function open(state) {
  stock(state);
  for (const [name, values] of [["country", state.countries], ["age", state.ages]]) {
    for (const id of [name, `for-${name}`]) {
      for (const value of values) field(id).add(new Option(value, value));
    }
  }
  field("add").addEventListener("submit", async (event) => {
    event.preventDefault();
    await change("add", { title: field("title").value, country: field("for-country").value, age: field("for-age").value });
  });
  field("buy").addEventListener("click", buy);
  field("next").addEventListener("click", show);
  field("who").addEventListener("change", show);
  await show();
}

look();
