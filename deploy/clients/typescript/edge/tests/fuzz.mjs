// Reads cases of fuzz.py from standard input, one JSON line each, and writes this package's verdict on each to standard
// output.
import { createInterface } from "node:readline";

import { Agreement, EdgeError, unpackSlot } from "../dist/index.js";
import { unseen } from "../dist/device/model.js";
import { takeModel } from "../dist/device/taking.js";

import { Key } from "../dist/key.js";
import { RatingAgreement } from "../dist/ratings.js";
import { slotOf } from "../dist/ratings/making.js";
import { byItem, ratedAlso } from "../dist/ratings/rated.js";
import { firstVersion, takeVersion } from "../dist/ratings/rounds.js";

const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));
let [agreement, ratings, versions] = [];

async function verdict(one) {
  if (one.agreement) {
    agreement = new Agreement(one.agreement);
    ratings = new RatingAgreement(one.ratings);
    const taken = one.rounds.map((body) => takeVersion(ratings, unseen(ratings), bytes(body), null, one.now));
    versions = [firstVersion(ratings), ...(await Promise.all(taken)).map(({ version }) => version)];
    return "agreed";
  }
  if (one.rated !== undefined) {
    const { settings } = ratings;
    const own = byItem(settings, ratedAlso(settings, [], one.rated, one.ratings));
    const key = await Key.of(Uint8Array.from(Buffer.from(one.key, "hex")));
    const salt = new DataView((await key.prf("bgt-salt")).buffer).getBigUint64(0, true);
    return Buffer.from(slotOf(ratings, own, versions[one.round].asked, salt)).toString("hex");
  }
  if (one.version !== undefined) {
    const { version, figures } = await takeVersion(ratings, unseen(ratings), bytes(one.version), null, one.now);
    return `taken ${figures.version} ${version.asked?.kind ?? "none"}`;
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
