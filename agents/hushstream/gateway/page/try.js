"use strict";

const field = (id) => document.getElementById(id);
let description = null;
let shape = {};
let items = [];

function resolved(schema) {
  const reference = schema.$ref;
  return reference ? description.components.schemas[reference.split("/").pop()] : schema;
}

// A valid body of a call, made from its schema: the required keys, with the schema's example if it has one.
function example(schema, name) {
  const found = resolved(schema);
  if (found.examples) return found.examples[0];
  if (found.type === "object") {
    return Object.fromEntries(
      (found.required || []).map((key) => [key, example(found.properties[key], key)]),
    );
  }
  if (found.type === "array") {
    if (name === "ratings") return [shape.ratings ? shape.ratings.highest : 1];
    return [example(found.items, name)];
  }
  if (found.type === "string") return name === "event_id" ? `try-${Date.now()}` : "user-1";
  if (name === "label") return 1;
  return found.minimum !== undefined && found.minimum > 0 ? found.minimum : 0;
}

// A valid value of a declared feature.
function valueOf(feature) {
  switch (feature.kind) {
    case "category": return feature.vocabulary[0];
    case "number": return feature.range[0];
    case "boolean": return true;
    case "time_of_day": return "12:00";
    case "day_of_week": return "mon";
    case "tags": return feature.vocabulary.slice(0, 1);
    case "embedding": return Array(feature.dimension).fill(0);
    case "histogram": return Array(feature.bins).fill(1);
    default: return undefined;
  }
}

// A valid context of this deployment: numbers, numbers of each item, or values of its declared features.
function contextOf(asked) {
  if (asked.features) {
    const values = Object.entries(asked.features).map(([name, feature]) => [name, valueOf(feature)]);
    return Object.fromEntries(values.filter(([, value]) => value !== undefined));
  }
  if (asked.numbers_of_each_item) {
    const numbers = Array(asked.numbers_of_each_item).fill(0);
    return Object.fromEntries(items.map((one) => [one.item, numbers]));
  }
  return Array(asked.numbers).fill(1 / asked.numbers);
}

function exampleOf(operation) {
  const body = example(operation.requestBody.content["application/json"].schema, "");
  for (const one of body.requests || [body]) {
    if ("context" in one && shape.context) one.context = contextOf(shape.context);
    if ("item" in one && items.length) one.item = items[0].item;
    if (operation.operationId.startsWith("decide") && items.length) one.baseline = items[0].item;
  }
  return body;
}

// The titles of the items that an answer names by their ids.
function called(answer) {
  const titles = new Map(items.filter((one) => one.title).map((one) => [one.item, one.title]));
  const named = [];
  JSON.stringify(answer, (key, value) => {
    if (key === "item" && titles.has(value)) named.push(`${value}: ${titles.get(value)}`);
    return value;
  });
  return [...new Set(named)].join("\n");
}

function headers() {
  const token = field("token").value.trim();
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

function choose() {
  const [method, path] = field("call").value.split(" ");
  const operation = description.paths[path][method];
  // What is between backticks is code.
  field("about").replaceChildren(...`${operation.summary}. ${operation.description || ""}`.split("`").map((text, place) =>
    Object.assign(document.createElement(place % 2 ? "code" : "span"), { textContent: text })));
  field("body").disabled = method === "get";
  field("body").value = method === "get" ? "" : JSON.stringify(exampleOf(operation), null, 2);
}

async function read(path) {
  const answer = await fetch(path, { headers: headers() });
  return answer.ok ? answer.json() : {};
}

async function readShape() {
  shape = await read("/v1/schema");
  items = "/v1/items" in description.paths ? (await read("/v1/items")).items || [] : [];
  choose();
}

async function send() {
  const [method, path] = field("call").value.split(" ");
  const body = method === "get" ? undefined : field("body").value;
  try {
    const answer = await fetch(path, { method: method.toUpperCase(), headers: headers(), body });
    const text = await answer.text();
    field("status").textContent = `${answer.status} ${answer.statusText}`;
    const json = (answer.headers.get("Content-Type") || "").includes("json");
    field("answer").textContent = json ? JSON.stringify(JSON.parse(text), null, 2) : text;
    field("named").textContent = json ? called(JSON.parse(text)) : "";
  } catch (error) {
    field("status").textContent = "The gateway did not answer.";
    field("answer").textContent = field("named").textContent = "";
  }
}

async function begin() {
  description = await (await fetch("/openapi.json")).json();
  field("title").textContent = description.info.title;
  if ("/v1/catalogue" in description.paths) {
    const page = Object.assign(document.createElement("a"), { href: "/catalogue", textContent: "Items, measurement, budget" });
    field("owner").append(page, ", for an operator.");
  }
  for (const [path, operations] of Object.entries(description.paths)) {
    for (const method of Object.keys(operations)) {
      field("call").add(new Option(`${method.toUpperCase()} ${path}`, `${method} ${path}`));
    }
  }
  field("call").addEventListener("change", choose);
  field("token").addEventListener("change", readShape);
  field("send").addEventListener("click", send);
  await readShape();
}

begin();
