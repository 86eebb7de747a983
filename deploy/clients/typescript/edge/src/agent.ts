import type { Agreement } from "./agreement.js";
import { littleEndian, utf8 } from "./encoding.js";
import { EdgeError } from "./errors.js";
import type { Key } from "./key.js";
import { TwoCandidates, reportId, type Candidates, type Interaction, type Resolved } from "./learner/candidates.js";
import { WHOLE, draw, weights } from "./learner/exploration.js";
import { OwnSteps, SparseUCB, contextOf, type SparseContext, type SparseModel } from "./learner/sparse.js";
import { packSlot } from "./slot.js";

const NOT_SHOWN = -1;

/** A shared model and its version; version 0 has learned nothing. */
export interface SharedModel {
  readonly version: number;
  readonly model: SparseModel;
}

/** The answer to a decision. */
export interface Choice {
  readonly arm: number;
  /** Probability with which the arm was chosen, in units of 1e-9. */
  readonly billionths: number;
  readonly modelVersion: number;
  /** Whether a slot is due with this decision. */
  readonly slotDue: boolean;
  /** Whether the event had this answer before. */
  readonly repeated: boolean;
}

/** What a user has spent. It must be kept when a state is dropped, so that nothing that was spent comes back. */
export interface Allowance {
  /** Decisions in the user's life. */
  readonly decided: number;
  /** How many slots fell due; `sent`: how many of them were taken. */
  readonly due: number;
  readonly sent: number;
  /** The newest period of the quota; `used`: how many contexts it has had. */
  readonly period: number;
  readonly used: number;
  /** If slots are renewed: the first decision of the newest slot (-1: none yet); `renewsMs`: when the next slot may begin. */
  readonly first: number;
  readonly renewsMs: number;
  /** What the slots that fell due cost, and the life first agreed to (0: none yet); see `Agreed.priceFrom`. */
  readonly paid: number;
  readonly life: number;
}

export const UNSPENT: Allowance = { decided: 0, due: 0, sent: 0, period: 0, used: 0, first: -1, renewsMs: 0, paid: 0, life: 0 };

/** Whether `one` has spent at least as much as `other`. */
export function covers(one: Allowance, other: Allowance): boolean {
  const slots = one.decided >= other.decided && one.due >= other.due && one.sent >= other.sent && one.paid >= other.paid;
  const renewed = one.first >= other.first && one.renewsMs >= other.renewsMs;
  return slots && renewed && (one.period > other.period || (one.period === other.period && one.used >= other.used));
}

/** The larger of both spendings, count by count. */
export function most(one: Allowance, other: Allowance): Allowance {
  const newer = one.period > other.period || (one.period === other.period && one.used > other.used) ? one : other;
  return {
    decided: Math.max(one.decided, other.decided),
    due: Math.max(one.due, other.due),
    sent: Math.max(one.sent, other.sent),
    period: newer.period,
    used: newer.used,
    first: Math.max(one.first, other.first),
    renewsMs: Math.max(one.renewsMs, other.renewsMs),
    paid: Math.max(one.paid, other.paid),
    life: one.life || other.life,
  };
}

/** A decision that waits for feedback. */
export interface OpenDecision {
  readonly row: Uint8Array;
  arm: number;
  billionths: number;
  readonly modelVersion: number;
  readonly index: number;
  readonly deadlineMs: number;
  shownArm: number;
}

/** The answer of a rewarded event, kept until its deadline. */
export interface Answered {
  readonly arm: number;
  readonly billionths: number;
  readonly modelVersion: number;
  readonly deadlineMs: number;
}

/** One fixed-size report before it is sealed. */
export interface Slot {
  readonly reportId: Uint8Array;
  readonly content: Uint8Array;
}

/** The effect of feedback. */
export type Outcome = "shown" | "rewarded" | "repeated_feedback" | "other_arm" | "expired_as_zero" | "never_shown";

/** What the user learned alone (`steps`), and the shared model from which they started. */
export interface OwnState {
  readonly base: SharedModel;
  readonly steps: OwnSteps;
}

/** All that the agent knows of one user, without the key and the newest model. */
export interface AgentState {
  readonly allowance: Allowance;
  readonly seenMs: number;
  readonly own: OwnState | null;
  readonly open: readonly (readonly [string, OpenDecision])[];
  readonly answered: readonly (readonly [string, Answered])[];
  readonly resolved: readonly Resolved[];
  readonly candidates: readonly Candidates[];
}

/**
 * One user's learner, feedback and slots, as `hushstream.systems.p2b.edge.agent.EdgeAgent`. It uses no clock, storage
 * or network: the result of a call depends only on the calls before it and on the user's key.
 */
export class EdgeAgent {
  shared: SharedModel;
  readonly #agreement: Agreement;
  readonly #key: Key;
  readonly #kernel: SparseUCB;
  readonly #waits: TwoCandidates;
  readonly #open = new Map<string, OpenDecision>();
  readonly #answered = new Map<string, Answered>();
  #own: OwnState | null = null;
  #spent: { -readonly [Name in keyof Allowance]: Allowance[Name] };
  #seenMs = 0;

  constructor(agreement: Agreement, key: Key, spent: Allowance = UNSPENT, shared?: SharedModel) {
    this.#agreement = agreement;
    this.#key = key;
    this.shared = shared ?? { version: 0, model: agreement.cold };
    this.#kernel = new SparseUCB(agreement.layout.arms);
    this.#waits = new TwoCandidates(agreement.terms.click_chance, key);
    this.#spent = { ...spent, life: spent.life || agreement.priceFrom(0) };
  }

  /** Make an agent that continues from a state of `state`. */
  static resumed(agreement: Agreement, key: Key, state: AgentState, shared: SharedModel): EdgeAgent {
    const agent = new EdgeAgent(agreement, key, state.allowance, shared);
    [agent.#own, agent.#seenMs] = [state.own, state.seenMs];
    for (const [event, decision] of state.open) agent.#open.set(event, { ...decision });
    for (const [event, answer] of state.answered) agent.#answered.set(event, answer);
    [agent.#waits.resolved, agent.#waits.held] = [state.resolved, state.candidates];
    return agent;
  }

  get state(): AgentState {
    return {
      allowance: this.allowance,
      seenMs: this.#seenMs,
      own: this.#own,
      open: [...this.#open],
      answered: [...this.#answered],
      resolved: this.#waits.resolved,
      candidates: this.#waits.held,
    };
  }

  get allowance(): Allowance {
    return { ...this.#spent };
  }

  /** Count one context of the user; returns whether it may still be learned from. */
  withinQuota(nowMs: number): boolean {
    const { contexts_per_period: most, quota_period_ms: length } = this.#agreement.terms;
    this.#seenMs = nowMs;
    if (most === null) return true;
    const period = Math.floor(nowMs / length);
    if (period !== this.#spent.period) [this.#spent.period, this.#spent.used] = [period, 0];
    this.#spent.used = Math.min(this.#spent.used + 1, most + 1);
    return this.#spent.used <= most;
  }

  /** Choose with the shared model alone: nothing of this decision is remembered, learned or reported. */
  decidePublicly(row: Uint8Array, eligible: readonly boolean[] | null = null): Choice {
    const scores = this.#kernel.scores(this.shared.model, null, this.#context(row));
    const [arm, ties] = this.#kernel.choose(scores, eligible, this.#pick);
    const billionths = Math.floor(WHOLE / ties);
    return { arm, billionths, modelVersion: this.shared.version, slotDue: false, repeated: false };
  }

  /** Whether an event was answered, and gets the same answer again. */
  known(event: string, nowMs: number): boolean {
    const found = this.#open.get(event) ?? this.#answered.get(event);
    return found !== undefined && found.deadlineMs > nowMs;
  }

  /** Choose an arm for the row of a context and remember the decision until feedback comes, or until its deadline. */
  decide(event: string, row: Uint8Array, nowMs: number, eligible: readonly boolean[] | null = null): Choice {
    const known = this.#open.get(event) ?? this.#answered.get(event);
    this.#forgetAnswers(nowMs);
    if (known !== undefined && known.deadlineMs > nowMs) {
      const { arm, billionths, modelVersion } = known;
      return { arm, billionths, modelVersion, slotDue: false, repeated: true };
    }
    const { terms } = this.#agreement;
    const [arm, billionths] = this.#chosen(event, row, eligible);
    const modelVersion = this.#own?.base.version ?? this.shared.version;
    const index = this.#spent.decided;
    this.#seenMs = nowMs;
    if (this.#renews(nowMs)) this.#spent.first = index;
    this.#waits.settle(nowMs);
    this.#spent.decided = index + 1;
    const deadlineMs = nowMs + terms.attribution_window_ms;
    this.#open.set(event, { row, arm, billionths, modelVersion, index, deadlineMs, shownArm: NOT_SHOWN });
    return { arm, billionths, modelVersion, slotDue: this.#fallsDue(nowMs), repeated: false };
  }

  /** Note the arm that was on screen for a waiting event; only the first note counts. */
  shown(event: string, arm?: number): Outcome {
    const decision = this.#waiting(event);
    const screened = this.#arm(arm ?? decision.arm);
    if (decision.shownArm !== NOT_SHOWN) return "repeated_feedback";
    decision.shownArm = screened;
    return screened === decision.arm ? "shown" : "other_arm";
  }

  /** Learn from the reward in [0, 1] of a waiting event. Unless `shown` named another arm, the rewarded arm counts as shown. */
  rewarded(event: string, reward: number, arm?: number): Outcome {
    const decision = this.#waiting(event);
    const named = this.#arm(arm ?? decision.arm);
    // Written so that NaN, which compares false, is refused.
    if (typeof reward !== "number" || !(reward >= 0 && reward <= 1)) {
      throw new EdgeError("reward: expected a number in [0, 1], got one outside or NaN");
    }
    this.#open.delete(event);
    const { billionths, modelVersion, deadlineMs } = decision;
    this.#answered.set(event, { arm: decision.arm, billionths, modelVersion, deadlineMs });
    const screened = decision.shownArm === NOT_SHOWN ? named : decision.shownArm;
    this.#learn(decision, screened, reward);
    return screened === decision.arm ? "rewarded" : "other_arm";
  }

  /** Close all waiting events whose deadline has passed: what was shown and not rewarded becomes reward 0. */
  advance(nowMs: number): Outcome[] {
    const over: [string, OpenDecision][] = [];
    for (const one of this.#open) if (one[1].deadlineMs <= nowMs) over.push(one);
    return over.map(([event, decision]) => {
      this.#open.delete(event);
      if (decision.shownArm === NOT_SHOWN) return "never_shown";
      this.#learn(decision, decision.shownArm, 0);
      return "expired_as_zero";
    });
  }

  /** Take the oldest slot that is due and not taken yet; its content does not change after this. */
  takeSlot(nowMs: number): Slot {
    const { due, sent } = this.#spent;
    if (sent >= due) throw new EdgeError(`takeSlot: expected a slot that is due, got ${sent} of ${due} taken already`);
    this.#spent.sent = sent + 1;
    this.#waits.settle(nowMs);
    const interaction = this.#waits.take(sent);
    return { reportId: reportId(this.#key, sent), content: this.#content(interaction) };
  }

  /** The score of every arm for a row, as the next decision would compute it. */
  scores(row: Uint8Array): Float32Array {
    const { model } = this.#own?.base ?? this.shared;
    return this.#kernel.scores(model, this.#own?.steps ?? null, this.#context(row)).slice();
  }

  /**
   * Replace the answer to a waiting event by that of another processor, whose rounding has decided a tie of scores
   * otherwise.
   */
  correct(event: string, arm: number, billionths: number): void {
    const decision = this.#waiting(event);
    [decision.arm, decision.billionths] = [arm, billionths];
  }

  #chosen(event: string, row: Uint8Array, eligible: readonly boolean[] | null): [number, number] {
    const { model } = this.#own?.base ?? this.shared;
    const scores = this.#kernel.scores(model, this.#own?.steps ?? null, this.#context(row));
    const { exploration } = this.#agreement;
    if (exploration === null) {
      const [arm, ties] = this.#kernel.choose(scores, eligible, this.#pick);
      return [arm, Math.floor(WHOLE / ties)];
    }
    // The number follows from the event id, not from the count of decisions: else repeated requests could draw until a
    // wanted item comes.
    const number = this.#key.uniform("exploration", utf8(event), WHOLE);
    const { arm, propensity } = draw(weights(exploration, scores, eligible), number);
    return [arm, propensity];
  }

  readonly #pick = (ties: number): number => this.#key.uniform("tie", littleEndian(this.#spent.decided), ties);

  #context(row: Uint8Array): SparseContext {
    return contextOf(this.#agreement.layout.schema.blocks(row));
  }

  #content(interaction: Interaction | null): Uint8Array {
    const { layout } = this.#agreement;
    if (interaction === null) return packSlot(layout, null);
    const units = layout.unitsOf(layout.schema.blocks(interaction.row));
    const below = Math.trunc(interaction.reward * layout.levels);
    // The product may lie below a whole number, as that of 0.29 and 100 does.
    const level = (below + 1) / layout.levels <= interaction.reward ? below + 1 : below;
    // The items are those that the configuration names, so their catalogue has the version that it begins with.
    return packSlot(layout, { arm: interaction.arm, level, catalogue: layout.arms, units });
  }

  #learn(decision: OpenDecision, arm: number, reward: number): void {
    this.#own ??= { base: this.shared, steps: new OwnSteps(this.#agreement.layout.cells) };
    const { base, steps } = this.#own;
    this.#kernel.learn(base.model, steps, this.#context(decision.row), arm, reward);
    const slot = this.#slotOf(decision.index);
    if (slot < this.#spent.sent || slot >= this.#agreement.terms.lifetime_slots) return;
    const { index, deadlineMs, row } = decision;
    this.#waits.add({ slot, index, deadlineMs, interaction: { row, arm, reward } });
  }

  /** If slots are renewed: whether the next decision is the first of a slot. */
  #renews(nowMs: number): boolean {
    const { renew_ms: renewMs, lifetime_slots: most } = this.#agreement.terms;
    // The cap of a life: without it a user would get slots for ever, and no price of a life would hold.
    return renewMs !== null && !this.#inSlot() && this.#spent.due < most && nowMs >= this.#spent.renewsMs;
  }

  #inSlot(): boolean {
    const { first, decided } = this.#spent;
    return first >= 0 && decided < first + this.#agreement.terms.after_interactions;
  }

  /** The slot to which a decision belongs; -1 if it is between two slots, or its slot is settled. */
  #slotOf(index: number): number {
    const { after_interactions: length, renew_ms: renewMs } = this.#agreement.terms;
    const { first, due } = this.#spent;
    if (renewMs === null) return Math.floor(index / length);
    if (first < 0 || index < first || index >= first + length) return -1;
    return this.#inSlot() ? due : due - 1;
  }

  #fallsDue(nowMs: number): boolean {
    const { after_interactions: length, renew_ms: renewMs, lifetime_slots: most } = this.#agreement.terms;
    const { first, due, decided } = this.#spent;
    if (renewMs === null ? due >= most || decided !== (due + 1) * length : first < 0 || decided !== first + length) {
      return false;
    }
    this.#spent.due = due + 1;
    this.#spent.paid += this.#agreement.slotMicro;
    if (renewMs !== null) this.#spent.renewsMs = nowMs + renewMs;
    return true;
  }

  /** Drop answers whose deadline has passed, up to the first whose deadline has not. */
  #forgetAnswers(nowMs: number): void {
    for (const [event, answer] of this.#answered) {
      if (answer.deadlineMs > nowMs) return;
      this.#answered.delete(event);
    }
  }

  #waiting(event: string): OpenDecision {
    const found = this.#open.get(event);
    if (found === undefined) throw new EdgeError("feedback: expected an event that waits, got another one");
    return found;
  }

  #arm(arm: number): number {
    const { arms } = this.#agreement.layout;
    if (Number.isInteger(arm) && arm >= 0 && arm < arms) return arm;
    throw new EdgeError(`feedback: expected an item from 0 to ${arms - 1}, got another`);
  }
}
