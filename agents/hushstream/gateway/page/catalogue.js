"use strict";

const field = (id) => document.getElementById(id);

async function ask(body) {
  const token = field("token").value.trim();
  const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const asked = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const answer = await fetch("/v1/catalogue", asked);
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${found.title}. ${found.errors ? found.errors.map((one) => `${one.pointer}: ${one.detail}`).join("; ") : found.detail}`);
  return found;
}

function said(text) {
  field("status").textContent = text;
}

// Does one thing after another, and says what went wrong.
async function attempt(act) {
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

function row(one) {
  const made = document.createElement("tr");
  const features = Object.entries(one.features).map(([name, value]) => `${name}: ${value}`).join(", ");
  const cells = [one.item, one.title, features, `${one.offered ? "offered" : "retired"} since version ${one.since}`];
  for (const text of cells) made.insertCell().textContent = text;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = one.offered ? "Retire" : "Offer again";
  button.setAttribute("aria-label", `${button.textContent}: ${one.item}`);
  const { item, title } = one;
  const body = one.offered ? { retire: [item] } : { items: [{ item, title, features: one.features }] };
  button.addEventListener("click", () => attempt(() => change(body, `${item}: ${one.offered ? "retired" : "offered"}`)));
  made.insertCell().append(button);
  return made;
}

async function show() {
  const { version, items } = await ask();
  field("version").textContent = `${items.filter((one) => one.offered).length} items are offered; version ${version} of the catalogue`;
  field("items").replaceChildren(...items.map(row));
}

async function put() {
  const [item, title, features] = ["item", "name", "features"].map((id) => field(id).value.trim());
  await change({ items: [{ item, title, features: features ? JSON.parse(features) : {} }] }, `${item}: offered`);
  field("put").reset();
}

field("token").addEventListener("change", () => attempt(show));
field("put").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(put);
});
attempt(show);
