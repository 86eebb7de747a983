import { Agreed, FORMAT, type AgreedFile, type SlotSize } from "./agreed.js";
import { hex, utf8 } from "./encoding.js";
import { require } from "./errors.js";
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

/** A checked agreement: the settings of the agent, which models and slots must fit. */
export class Agreement extends Agreed<SlotFigures> {
  readonly terms: TermsFigures;
  readonly layout: FeatureLayout;
  readonly cold: SparseModel;
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
}

function explorationOf({ choice, share, temperature }: TermsFigures["exploration"]): Exploration | null {
  expect(["greedy", "epsilon", "softmax"].includes(choice), "a choice of greedy, epsilon or softmax");
  if (choice === "epsilon") return { choice, share: round(share * WHOLE) };
  return choice === "softmax" ? { choice, temperature } : null;
}

const expect = (good: boolean, what: string): void => require("agreement", good, what);
