// One more visitor: asks the gateway what to show, as the page of any shop does, or the device in this browser.

const place = (id) => document.getElementById(id);
const MOST_SHOWN = 100;
const ALONE = " Without a shared model: there is none yet, or you are in the fifth that learns alone.";

/** A learner at the operator: `decide`, `shown` and `reward` over HTTP. */
function hosted(state) {
  const user = `page-${crypto.randomUUID()}`;
  let visits = 0, bought = 0, asked = 0;
  const titles = new Map(state.names.map((name, arm) => [name, state.items[arm]]));

  async function ask(call, body) {
    const answer = await fetch(`${state.gateway}/v1/${call}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.code);
    return found;
  }

  return {
    async offer(context) {
      asked += 1;
      const event = `${user}-${asked}`;
      const found = await ask("decide", { event_id: event, user, context, baseline: state.names[asked % state.names.length] });
      if (found.logged) await ask("shown", { event_id: event });
      visits += 1;
      const chosen = found.propensity === null ? "" : `, chosen with probability ${found.propensity.toFixed(2)}`;
      return {
        event,
        title: titles.get(found.item) ?? found.item,
        live: found.logged,
        why: found.logged
          ? `By ${found.model_version ? `model version ${found.model_version} and ` : ""}your own visits${chosen}.${found.model_version ? "" : ALONE}`
          : "No learner answers now: this is the application's own choice (its baseline), and nothing is learned from it.",
      };
    },
    async buy(event) {
      await ask("reward", { event_id: event, reward: 1 });
      bought += 1;
    },
    summary: () => `You bought ${bought} of ${Math.max(0, visits - 1)} that you saw before. What you do not buy within 10 seconds counts as not bought.`,
  };
}

/** A learner in this browser; every request that leaves is shown. */
async function ownDevice(state) {
  const { EdgeDevice, browserMark, browserStore } = await import("/edge.min.js");
  const { agreement, gateway } = await (await fetch("/agreement.json")).json();
  let reports = 0;

  function left({ method, url, headers, body, atMs }) {
    const item = document.createElement("li");
    const names = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
    item.textContent = [`${new Date(atMs).toLocaleTimeString()}  ${method} ${url}`, ...names].join("; ");
    if (body !== null) {
      reports += 1;
      const bytes = document.createElement("pre");
      bytes.textContent = Array.from(body, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
      item.append(`: ${body.length} bytes, sealed for the shuffler`, bytes);
    }
    place("left").append(item);
    while (place("left").children.length > MOST_SHOWN) place("left").firstElementChild.remove();
  }

  const device = await EdgeDevice.open({
    agreement,
    url: gateway,
    // Another run of the demo is another deployment with other keys, so it has a store of its own.
    store: browserStore(agreement.configuration),
    mark: browserMark(agreement.configuration),
    onSend: left,
  });
  place("agreed").replaceChildren(...device.guarantee().map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
  const summary = () => {
    const { decided, due, sent, waiting, modelVersion } = device.status;
    return `Visits that stay here: ${decided}. Reports: ${due} due, ${sent} with content, ${waiting} to send, ${reports} below. ` +
      `Model: version ${modelVersion}.`;
  };
  device.start(5000, () => { place("summary").textContent = summary(); });
  return {
    async offer(context) {
      const event = `visit-${crypto.randomUUID()}`;
      const { item, modelVersion, propensity } = await device.decide(event, context);
      await device.shown(event);
      return {
        event,
        title: state.items[item],
        live: true,
        why: `Chosen here with probability ${propensity.toFixed(2)}, from model version ${modelVersion} and your own visits.`,
      };
    },
    buy: (event) => device.reward(event, 1),
    summary,
  };
}

/** A field for each feature; returns a function that reads them. */
function fields(features) {
  const readers = Object.entries(features).map(([name, { kind, vocabulary, range }]) => {
    const label = document.createElement(kind === "tags" ? "fieldset" : "label");
    if (kind === "tags") {
      label.append(Object.assign(document.createElement("legend"), { textContent: name }));
      const boxes = vocabulary.map((value) => {
        const box = Object.assign(document.createElement("input"), { type: "checkbox", value, id: `${name}-${value}` });
        const one = document.createElement("label");
        one.append(box, ` ${value}`);
        label.append(one);
        return box;
      });
      place("who").append(label);
      return () => [name, boxes.filter((box) => box.checked).map((box) => box.value)];
    }
    label.append(`${name} `);
    const field = document.createElement(kind === "number" ? "input" : "select");
    field.id = name;
    if (kind === "number") {
      Object.assign(field, { type: "number", min: range[0], max: range[1], value: Math.round((range[0] + range[1]) / 2) });
    } else if (kind === "time_of_day") {
      for (let hour = 0; hour < 24; hour += 1) field.add(new Option(`${hour}:00`, hour, false, hour === new Date().getHours()));
    } else {
      for (const value of vocabulary) field.add(new Option(value));
    }
    label.append(field);
    place("who").append(label);
    return () => [name, kind === "category" ? field.value : Number(field.value)];
  });
  return () => Object.fromEntries(readers.map((read) => read()));
}

async function visiting(state) {
  const values = fields(state.features);
  const shop = state.devices ? await ownDevice(state) : hosted(state);
  let offer = null;

  async function next() {
    for (const id of ["buy", "next"]) place(id).disabled = true;
    try {
      offer = await shop.offer(values());
      place("item").textContent = offer.title;
      place("why").textContent = offer.why;
      place("buy").disabled = !offer.live;
    } catch (error) {
      place("item").textContent = "The shop does not answer.";
      place("why").textContent = error.message;
    }
    place("next").disabled = false;
    place("summary").textContent = shop.summary();
  }

  place("buy").onclick = async () => {
    place("buy").disabled = true;
    try {
      await shop.buy(offer.event);
    } catch (error) {
      place("why").textContent = error.message;
    }
    await next();
  };
  place("next").onclick = next;
  place("who").onsubmit = (event) => event.preventDefault();
  place("who").onchange = next;
  await next();
}

addEventListener("opened", ({ detail }) => void visiting(detail), { once: true });
