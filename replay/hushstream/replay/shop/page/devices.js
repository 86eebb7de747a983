import { EdgeDevice, browserMark, browserStore } from "/edge.min.js";

const place = (name) => document.getElementById(name);
const MOST_SHOWN = 100;
let visit = null;
let slots = 0;

/** A request that leaves, with every byte of its body. */
function show({ method, url, headers, body, atMs }) {
  const item = document.createElement("li");
  const when = new Date(atMs).toLocaleTimeString();
  const names = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  item.textContent = [`${when}  ${method} ${url}`, ...names].join("; ");
  if (body !== null) {
    slots += 1;
    const bytes = document.createElement("pre");
    bytes.textContent = Array.from(body, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    item.append(`: ${body.length} bytes, sealed for the shuffler`, bytes);
  }
  place("left").append(item);
  while (place("left").children.length > MOST_SHOWN) place("left").firstElementChild.remove();
}

function summarise(device) {
  const { decided, due, sent, waiting, modelVersion } = device.status;
  place("summary").textContent =
    `Visits that stay here: ${decided}. Slots: ${due} due, ${sent} with content, ${waiting} to send, ${slots} below. ` +
    `Model: version ${modelVersion}.`;
}

async function next(device, shelf) {
  const event = `visit-${crypto.randomUUID()}`;
  const values = { country: place("country").value, age: place("age").value };
  const { item, modelVersion, propensity } = await device.decide(event, values);
  await device.shown(event);
  visit = event;
  place("item").textContent = shelf[item].title;
  place("why").textContent = `chosen here with probability ${propensity.toFixed(3)}, from model ${modelVersion} and your own visits`;
  place("buy").disabled = false;
  summarise(device);
}

async function buy(device, shelf) {
  place("buy").disabled = true;
  await device.reward(visit, 1);
  await next(device, shelf);
}

function choices(name, values) {
  for (const value of values) place(name).add(new Option(value));
}

async function open() {
  const [shelf, answer] = await Promise.all([fetch("/shelf.json"), fetch("/agreement.json")]);
  if (!answer.ok) {
    setTimeout(open, 1000);
    return;
  }
  const goods = await shelf.json();
  const { agreement, gateway } = await answer.json();
  const { country, age } = agreement.layout.features;
  choices("country", country.vocabulary);
  choices("age", age.vocabulary);
  const device = await EdgeDevice.open({
    agreement,
    url: gateway,
    // Another run of this shop is another deployment with other keys, so it has a store of its own.
    store: browserStore(agreement.configuration),
    mark: browserMark(agreement.configuration),
    onSend: show,
  });
  for (const line of device.guarantee()) {
    const item = document.createElement("li");
    item.textContent = line;
    place("promised").append(item);
  }
  device.start(5000, () => summarise(device));
  place("buy").onclick = () => buy(device, goods);
  place("next").onclick = () => next(device, goods);
  place("next").disabled = false;
  await next(device, goods);
}

void open();
