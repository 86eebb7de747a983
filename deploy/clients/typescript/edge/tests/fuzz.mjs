// Cases from fuzz.py on standard input, a line of JSON each; what this package says of each on standard output.
import { createInterface } from "node:readline";

import { Agreement, EdgeError, unpackSlot } from "../dist/index.js";
import { takeModel, unseen } from "../dist/device/model.js";

const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));
let agreement;

async function verdict(one) {
  if (one.agreement) {
    agreement = new Agreement(one.agreement);
    return "agreed";
  }
  if (one.slot !== undefined) {
    const found = unpackSlot(agreement.layout, bytes(one.slot));
    if (found === null || found === "forged") return found ?? "null";
    const { arm, level, catalogue, units } = found;
    return `report ${[arm, level, catalogue, ...units.cells, ...units.units].join(" ")}`;
  }
  if (one.values !== undefined) return Buffer.from(agreement.layout.schema.encode(one.values).row).toString("hex");
  const { shared } = await takeModel(agreement, unseen(agreement), bytes(one.model), null, one.now);
  return `taken ${shared.version}`;
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(await verdict(JSON.parse(line)));
  } catch (error) {
    console.log(error instanceof EdgeError ? "refused" : `crashed: ${error?.stack}`.replace(/\n/g, " "));
  }
}
