"use strict";

const field = (id) => document.getElementById(id);

async function ask(body, path = "/v1/catalogue") {
  const token = field("token").value.trim();
  const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const asked = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const answer = await fetch(path, asked);
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${found.title}. ${found.errors ? found.errors.map((one) => `${one.pointer}: ${one.detail}`).join("; ") : found.detail}`);
  return found;
}

function said(text) {
  field("status").textContent = text;
}

// Does one thing after another, and says what went wrong.
async function attempt(act) {
  said("");
  try {
    await act();
  } catch (error) {
    said(error instanceof TypeError ? "The gateway did not answer." : error.message);
  }
}

async function change(body, done) {
  const { version } = await ask(body);
  said(`${done} since version ${version}.`);
  await show();
}

function rowOf(cells) {
  const made = document.createElement("tr");
  for (const [label, text] of Object.entries(cells)) {
    const cell = made.insertCell();
    cell.dataset.label = label;
    cell.textContent = text;
  }
  return made;
}

const some = (number) => Math.max(0, Math.round(number)).toLocaleString("en");
const signed = (number) => (number < 0 ? "\u2212" : "+") + Math.abs(number).toFixed(4);
const cost = (one) => `epsilon ${Number(one.epsilon.toPrecision(4))}, delta ${one.delta.toExponential(2)}`;

function comparison(one) {
  const known = one.difference !== null;
  return rowOf({
    Over: one.harm ? `${one.harm}, over ${one.over}` : one.over,
    Difference: known ? `${signed(one.difference)} (${signed(one.low)} to ${signed(one.high)})` : "hidden by the noise",
    Counted: `about ${some(one.counted)}`,
    Needed: one.needed === null ? "no number is enough" : one.needed <= one.counted ? "no more" : `about ${some(one.needed)}`,
  });
}

function paid(one) {
  const left = one.releases_left === null ? "any number more" : `a partition may release ${some(one.releases_left)} more`;
  return rowOf({
    Budget: `${one.unit}: ${cost(one.limit)}`,
    Paid: cost(one.paid),
    Left: one.left.epsilon || one.left.delta ? cost(one.left) : "nothing to pay: the price of all releases is fixed and charged in advance",
    Released: `${some(one.releases)} ${one.released}; ${left}`,
  });
}

// Released figures alone, for an operator.
async function look() {
  const { measurement, budget } = await ask(undefined, "/v1/overview");
  field("measurement").replaceChildren(...(measurement ? measurement.comparisons.map(comparison) : []));
  field("about").textContent = measurement ? measurement.about : "This deployment measures nothing (`measurement`).";
  field("budget").replaceChildren(...budget.map(paid));
  field("overview").hidden = false;
}

function row(one) {
  const made = document.createElement("tr");
  const features = Object.entries(one.features).map(([name, value]) => `${name}: ${value}`).join(", ");
  const rules = (one.pinned ? ", pinned" : "") + (one.cap ? `, at most ${one.cap.shows} in ${one.cap.within_seconds} s for a user` : "");
  const cells = [one.item, one.title, features, `${one.offered ? "offered" : "retired"} since version ${one.since}${rules}`];
  for (const text of cells) made.insertCell().textContent = text;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = one.offered ? "Retire" : "Offer again";
  button.setAttribute("aria-label", `${button.textContent}: ${one.item}`);
  const { item, title, pinned, cap } = one;
  const body = one.offered ? { retire: [item] } : { items: [{ item, title, features: one.features, pinned, cap }] };
  button.addEventListener("click", () => attempt(() => change(body, `${item}: ${one.offered ? "retired" : "offered"}`)));
  made.insertCell().append(button);
  return made;
}

async function show() {
  const { version, items } = await ask();
  field("version").textContent = `${items.filter((one) => one.offered).length} items are offered; version ${version} of the catalogue`;
  field("items").replaceChildren(...items.map(row));
}

function featuresOf(text) {
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    throw new Error('Features: expected JSON such as {"colour": "red"}, got other text.');
  }
}

async function put() {
  const [item, title, features] = ["item", "name", "features"].map((id) => field(id).value.trim());
  const [shows, within_seconds] = ["shows", "seconds"].map((id) => field(id).valueAsNumber);
  const rules = { pinned: field("pinned").checked, cap: shows ? { shows, within_seconds } : null };
  await change({ items: [{ item, title, features: featuresOf(features), ...rules }] }, `${item}: offered`);
  field("put").reset();
}

field("token").addEventListener("change", () => attempt(async () => {
  await show();
  await look();
}));
field("put").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(put);
});
attempt(show);
