"use strict";

const field = (id) => document.getElementById(id);
let description = null;
let shape = {};

function resolved(schema) {
  const reference = schema.$ref;
  return reference ? description.components.schemas[reference.split("/").pop()] : schema;
}

// A body that the call takes, by its schema: what is required, with examples where there are some.
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

function exampleOf(operation) {
  const body = example(operation.requestBody.content["application/json"].schema, "");
  for (const one of body.requests || [body]) {
    if ("context" in one && shape.context) one.context = Array(shape.context.numbers).fill(1 / shape.context.numbers);
  }
  return body;
}

function headers() {
  const token = field("token").value.trim();
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

function choose() {
  const [method, path] = field("call").value.split(" ");
  const operation = description.paths[path][method];
  field("about").textContent = `${operation.summary}. ${operation.description || ""}`;
  field("body").disabled = method === "get";
  field("body").value = method === "get" ? "" : JSON.stringify(exampleOf(operation), null, 2);
}

async function readShape() {
  const answer = await fetch("/v1/schema", { headers: headers() });
  shape = answer.ok ? await answer.json() : {};
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
  } catch (error) {
    field("status").textContent = "The gateway did not answer.";
    field("answer").textContent = "";
  }
}

async function begin() {
  description = await (await fetch("/openapi.json")).json();
  field("title").textContent = description.info.title;
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
