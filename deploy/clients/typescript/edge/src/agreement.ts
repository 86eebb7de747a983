import { Agreed, FORMAT, type AgreedFile, type SlotSize } from "./agreed.js";
import { hex, utf8 } from "./encoding.js";
import { require } from "./errors.js";
import { canonical } from "./features/canonical.js";
import type { Declaration } from "./features/schema.js";
import { FeatureLayout } from "./layout.js";
import type { Exploration } from "./learner/exploration.js";
import { WHOLE } from "./learner/exploration.js";
import { round } from "./elementary.js";
import { SparseModel } from "./learner/sparse.js";

/** What an application ships with its code: `hushstream devices agreement DEPLOYMENT` prints it. */
export interface AgreementFile extends AgreedFile<SlotFigures> {
  readonly canonical: string;
  readonly terms: TermsFigures;
  readonly layout: LayoutFigures;
  readonly cold: { readonly mean: number; readonly variance: number; readonly reward_variance: number };
}

export interface SlotFigures extends SlotSize {
  readonly period_ms: number;
}

export interface TermsFigures {
  readonly after_interactions: number;
  readonly lifetime_slots: number;
  readonly levels: number;
  readonly attribution_window_ms: number;
  readonly contexts_per_period: number | null;
  readonly quota_period_ms: number;
  readonly renew_ms: number | null;
  readonly click_chance: number | null;
  readonly exploration: { readonly choice: string; readonly share: number; readonly temperature: number };
}

export interface LayoutFigures {
  readonly arms: number;
  readonly cells: number;
  readonly places: number;
  readonly digest: string;
  readonly budgets: readonly number[];
  readonly features: Declaration;
}

/** Every noise table is off by more, in units of 2^-80; `tests/edge/test_device.py` holds it. */
const LEAST_ERROR = 3_000_000;

/** A checked agreement: the settings of the agent, which models and slots must fit. */
export class Agreement extends Agreed<SlotFigures> {
  readonly terms: TermsFigures;
  readonly layout: FeatureLayout;
  readonly cold: SparseModel;
  /** What a slot costs, in millionths of epsilon. */
  readonly slotMicro: number;
  /** How an arm is drawn from the scores; null if the arm with the highest score is taken. */
  readonly exploration: Exploration | null;

  /** Refuses a file whose parts do not have the digests that it names for its configuration and its layout. */
  constructor(file: AgreementFile) {
    expect(file.format === FORMAT, `format ${FORMAT}`);
    super(file, utf8(file.canonical));
    const { arms, cells, places, digest, budgets, features } = file.layout;
    this.layout = new FeatureLayout(features, arms, file.terms.levels, budgets);
    const same = this.layout.cells === cells && this.layout.places === places && hex(this.layout.digest) === digest;
    expect(same, "the layout that its digest says");
    this.terms = file.terms;
    const settings = JSON.parse(file.canonical) as Settings;
    requireSettings(file, settings);
    // The shortest decimal counts, as in Python. With secret sampling a slot costs less, by the rounding of its noise.
    this.slotMicro = Math.ceil(Number((settings.release.epsilon * 1e6).toFixed(3)));
    const [price, slots] = [this.priceFrom(0), file.terms.lifetime_slots];
    const noised = 2 * places * slots;
    const slack = settings.release.sampling < 1 ? Math.min(4 * slots, Math.floor(price / 1000)) : 0;
    this.requireStated(price, 2 * price, slack, tableError(noised, price), tableError(2 * noised, 2 * price));
    this.requireContent(12 + 4 * places);
    for (const whole of [file.terms.after_interactions, file.terms.lifetime_slots, file.terms.levels, file.slot.period_ms]) {
      expect(Number.isSafeInteger(whole) && whole > 0, "positive whole numbers");
    }
    const { mean, variance, reward_variance: rewardVariance } = file.cold;
    const size = arms * cells;
    const [means, variances] = [new Float64Array(size).fill(mean), new Float64Array(size).fill(variance)];
    this.cold = SparseModel.of(arms, cells, means, variances, rewardVariance);
    this.exploration = explorationOf(file.terms.exploration);
  }

  /** See `Agreed`: slots are equal. */
  priceFrom(slot: number): number {
    return Math.max(0, this.terms.lifetime_slots - slot) * this.slotMicro;
  }
}

/** The settings under the digest that a device computes with, as Python's canonical form has them. */
interface Settings {
  readonly deployment: string;
  readonly arms: number;
  readonly budget: unknown;
  readonly context: { readonly declared: { readonly features: Declaration } };
  readonly exploration: TermsFigures["exploration"];
  readonly feedback: { readonly attribution_window_seconds: number };
  readonly release: {
    readonly epsilon: number;
    readonly levels: number;
    readonly sampling: number;
    readonly mode: string;
    readonly form: string;
  };
  readonly system: string;
  readonly kind: string;
  readonly public_dataset: boolean;
  readonly named_items: boolean;
  readonly slot: {
    readonly after_interactions: number;
    readonly lifetime_slots: number;
    readonly period_seconds: number;
    readonly settle_seconds: number;
    readonly renew_every_seconds: number | null;
  };
  readonly users: { readonly contexts_per_period: number | null; readonly period_seconds: number };
}

/** Refuse figures that do not follow from the settings under the digest; fewer slots may, where a budget has no room. */
function requireSettings({ deployment, promise, terms, slot, layout }: AgreementFile, settings: Settings): void {
  const { system, kind, public_dataset: replayed, named_items: named, release: { mode, form } } = settings;
  const known = canonical([system, kind, replayed, named, mode, form]) === canonical(["p2b", "edge", false, false, "slot-sums", "features"]);
  expect(known, "settings of devices that send slots for noised sums of items without names (and without caps and pins)");
  const { arms, budget, context, exploration, feedback, release, slot: owed, users } = settings;
  const milliseconds = (seconds: number | null): number | null => (seconds === null ? null : round(1000 * seconds));
  const stated = [
    deployment, promise.lifetime_slots, layout.arms, layout.features, terms.levels, terms.after_interactions, terms.contexts_per_period, terms.exploration,
    terms.attribution_window_ms, terms.quota_period_ms, terms.renew_ms, slot.period_ms, slot.delay_ms,
  ];
  const seconds = [
    feedback.attribution_window_seconds, users.period_seconds, owed.renew_every_seconds, owed.period_seconds, owed.settle_seconds,
  ];
  const given = [
    settings.deployment, terms.lifetime_slots, arms, context.declared.features, release.levels, owed.after_interactions,
    users.contexts_per_period, exploration,
  ];
  const same = canonical(stated) === canonical([...given, ...seconds.map(milliseconds)]);
  const fits = budget === null ? terms.lifetime_slots === owed.lifetime_slots : terms.lifetime_slots <= owed.lifetime_slots;
  expect(same && fits, "figures of its settings");
}

/** The least delta, in units of 2^-80, that the tables of `noised` draws add at an epsilon in millionths. */
function tableError(noised: number, micro: number): bigint {
  return BigInt(Math.floor(Math.min(0.999 * noised * LEAST_ERROR * (1 + Math.exp(micro / 1e6)), 2 ** 80)));
}

function explorationOf({ choice, share, temperature }: TermsFigures["exploration"]): Exploration | null {
  expect(["greedy", "epsilon", "softmax"].includes(choice), "a choice of greedy, epsilon or softmax");
  if (choice === "epsilon") return { choice, share: round(share * WHOLE) };
  return choice === "softmax" ? { choice, temperature } : null;
}

const expect = (good: boolean, what: string): void => require("agreement", good, what);
