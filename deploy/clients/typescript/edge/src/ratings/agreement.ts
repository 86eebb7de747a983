import { Agreed, FORMAT, type AgreedFile, type SlotSize } from "../agreed.js";
import { joined, littleEndian, utf8 } from "../encoding.js";
import { require } from "../errors.js";
import { canonical } from "../features/canonical.js";

/** What an application ships with its code: `agreement.json` of a deployment of BGTplanner. */
export interface RatingAgreementFile extends AgreedFile<SlotSize> {
  readonly system: string;
  readonly settings: Settings;
  /** Public features, a list of numbers for each item. */
  readonly features: readonly (readonly number[])[];
}

/** The settings that a device uses; other settings only enter their digest. */
export interface Settings {
  readonly system: string;
  readonly kind: string;
  readonly deployment: string;
  readonly items: number;
  readonly features: number;
  readonly settle_seconds: number;
  readonly scale: { readonly lowest: number; readonly highest: number; readonly middle: number };
  readonly release: {
    readonly clip: number;
    readonly factor_clip: number;
    readonly count_weight: number;
    readonly pairs: number;
    readonly top: number;
    readonly factors: number;
  };
  readonly model: {
    readonly offset_ridge: number;
    readonly lone_ridge: number;
    readonly factor_ridge: number;
    readonly feature_scale: number;
    readonly valid_seconds: number;
  };
}

/** Number of rounds; each user sends one slot in each. */
export const ROUNDS = 3;

/** The settings that are floats in Python, whatever their value. */
const FLOATS: ReadonlySet<string> = new Set([
  "lowest", "highest", "middle", "epsilon", "delta", "shares", "clip", "factor_clip", "count_weight", "rating_variance",
  "bias_variance", "offset_ridge", "lone_ridge", "factor_ridge", "factor_variance", "factor_weight", "feature_scale",
  "edge_margin", "valid_seconds", "settle_seconds", "lift",
]);
/** Settings of later releases: with these values they do not enter the digest. */
const SETTLE_SECONDS = 3600;
const VALID_SECONDS = 30 * 86_400;

/** A checked agreement: the settings by which slots are made, and which a model must fit. */
export class RatingAgreement extends Agreed {
  readonly settings: Settings;
  /** Public features of items, row by row, (items, settings.features). */
  readonly features: Float64Array;

  /** Refuses a file that does not have the digest that it names for its configuration. */
  constructor(file: RatingAgreementFile) {
    expect(file.format === FORMAT && file.system === "bgt", `format ${FORMAT} of bgt`);
    const { settings } = file;
    const { items, features, release, scale } = settings;
    const numbers = Float64Array.from(file.features.flat());
    const isWhole = numbers.length === items * features && numbers.every(Number.isFinite);
    expect(isWhole, `${features} numbers for each of ${items} items`);
    const content = new DataView(new ArrayBuffer(8 * numbers.length));
    numbers.forEach((value, place) => content.setFloat64(8 * place, value, true));
    const prepared = joined([littleEndian(content.byteLength), new Uint8Array(content.buffer)]);
    super(file, utf8(canonicalOf(settings)), prepared);
    [this.features, this.settings] = [numbers, settings];
    for (const [whole, least, most] of [[items, 2, 1 << 16], [release.pairs, 1, 1 << 12], [release.top, 2, 512], [release.factors, 1, 64]]) {
      expect(Number.isInteger(whole) && whole! >= least! && whole! <= most!, `a number from ${least} to ${most}`);
    }
    expect(scale.lowest < scale.highest && settings.kind === "edge", "a scale, and devices");
    this.requireContent(4 * (2 * release.pairs + 1 + release.factors));
    const { delay_ms: delay } = this.slot;
    // Python rounds a half to the even number, JavaScript rounds it up: so a difference of a half is accepted.
    const isNear = Number.isInteger(delay) && Math.abs(delay - 1000 * settings.settle_seconds) <= 0.5;
    const same = isNear && this.deployment === settings.deployment;
    expect(same && file.promise.lifetime_slots === ROUNDS, "figures of its settings");
  }

  /** For how many items the round of kind pairs asks. */
  get top(): number {
    return Math.min(this.settings.release.top, this.settings.items);
  }
}

/** The text over which a configuration's digest is computed. */
export function canonicalOf(settings: Settings): string {
  const { privacy: _aside, settle_seconds: settle, model, ...rest } = settings as Settings & { privacy?: unknown };
  const { valid_seconds: valid, ...parameters } = model;
  const said = {
    ...rest,
    model: valid === VALID_SECONDS ? parameters : model,
    ...(settle === SETTLE_SECONDS ? {} : { settle_seconds: settle }),
    public_dataset: false,
  };
  return canonical(said, FLOATS);
}

const expect = (good: boolean, what: string): void => require("agreement", good, what);
