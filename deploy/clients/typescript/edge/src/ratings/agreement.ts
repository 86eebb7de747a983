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
  readonly budget: unknown;
  readonly release: {
    readonly noise: string;
    readonly epsilon: number;
    readonly delta: number;
    readonly shares: readonly number[];
    readonly epochs: number;
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
/** By how many millionths of epsilon floats and Python's whole numbers may differ. */
const SLACK = 20;
/** Orders of Renyi's divergence. */
const ORDERS = Array.from({ length: 4094 }, (_, place) => place + 2);

/** A checked agreement: the settings by which slots are made, and which a model must fit. */
export class RatingAgreement extends Agreed {
  readonly settings: Settings;
  /** Public features of items, row by row, (items, settings.features). */
  readonly features: Float64Array;
  /** How many rounds the promise pays for: all, or the first ones if a budget has no room for more. */
  readonly rounds: number;

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
    const { shares, epochs, clip, epsilon, delta } = release;
    const three = shares.length === ROUNDS && shares.every((share) => typeof share === "number" && share >= 0.01);
    expect(three && Math.abs(sum(shares) - 1) <= 1e-9, "three shares of at least .01 that sum to 1");
    expect(Number.isInteger(epochs) && epochs >= 1 && epochs <= 1000, "1 to 1000 epochs");
    expect(clip > 0 && clip <= 1 && epsilon > 0 && epsilon <= 20 && delta > 0 && delta < 1, "a clip, epsilon and delta in range");
    expect(scale.lowest < scale.highest && settings.kind === "edge", "a scale, and devices");
    this.requireContent(4 * (2 * release.pairs + 1 + release.factors));
    const { delay_ms: delay } = this.slot;
    // Python rounds a half to the even number, JavaScript rounds it up: so a difference of a half is accepted.
    const isNear = Number.isInteger(delay) && Math.abs(delay - 1000 * settings.settle_seconds) <= 0.5;
    const same = isNear && this.deployment === settings.deployment;
    expect(same && file.promise.lifetime_slots === ROUNDS, "figures of its settings");
    this.rounds = this.#rounds();
  }

  /** See `Agreed`, and Python's `Agreement.price_from`. */
  priceFrom(slot: number): number {
    return this.settings.release.epochs * sum(rhos(this.settings).slice(slot, this.rounds));
  }

  /** See Python's `Agreement.rounds`. */
  #rounds(): number {
    const { release: { epochs, delta, noise }, budget } = this.settings;
    expect(noise === "gaussian" && (budget === null || epochs === 1), "noise, and no budget beside several epochs of it");
    const least = budget === null ? ROUNDS : 1;
    const price = (rounds: number, times: number): number =>
      epochs * epsilonMicro(times * sum(rhos(this.settings).slice(0, rounds)), delta);
    let rounds = ROUNDS;
    while (rounds > least && Math.abs(this.promise.epsilon_micro - price(rounds, 1)) > SLACK) rounds -= 1;
    const half = BigInt(epochs) * BigInt(Math.floor(delta * 2 ** 79 * (1 - 1e-9)));
    this.requireStated(price(rounds, 1), price(rounds, 4), SLACK * epochs, half);
    return rounds;
  }

  /** For how many items the round of kind pairs asks. */
  get top(): number {
    return Math.min(this.settings.release.top, this.settings.items);
  }
}

/** The text over which a configuration's digest is computed. */
export function canonicalOf(settings: Settings): string {
  const { privacy: _aside, ...rest } = settings as Settings & { privacy?: unknown };
  return canonical({ ...rest, public_dataset: false }, FLOATS);
}

const expect = (good: boolean, what: string): void => require("agreement", good, what);

const sum = (values: readonly number[]): number => values.reduce((one, other) => one + other, 0);

/** The price of each round's slot in one epoch of noise, in millionths of rho; see Python's `sensitivity.rho_micro`. */
function rhos({ release: { epsilon, delta, shares } }: Settings): number[] {
  const most = Math.max(...ORDERS.map((order) => (epsilon - beside(order, delta)) / order));
  return shares.map((share) => Math.max(1, Math.floor(Math.floor(most * 1e6) * share)));
}

/** The epsilon in millionths that a rho in millionths has at half of a delta. */
const epsilonMicro = (rho: number, delta: number): number =>
  Math.ceil(1e6 * Math.min(...ORDERS.map((order) => (order * rho) / 1e6 + beside(order, delta))));

const beside = (order: number, delta: number): number =>
  (-Math.log(delta / 2) - Math.log(order)) / (order - 1) + Math.log1p(-1 / order);
