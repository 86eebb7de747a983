import { littleEndian } from "../encoding.js";
import type { Key } from "../key.js";

/** A resolved interaction in clear: the row of its values, the arm on screen, the reward in [0, 1]. */
export interface Interaction {
  readonly row: Uint8Array;
  readonly arm: number;
  readonly reward: number;
}

/**
 * An interaction whose reward is known, with its slot, its number among the user's interactions, and the end of its
 * attribution window.
 */
export interface Resolved {
  readonly slot: number;
  readonly index: number;
  readonly deadlineMs: number;
  readonly interaction: Interaction;
}

/** The candidates of one slot: the first clicked interaction, and one drawn among `count` others. */
export interface Candidates {
  readonly slot: number;
  readonly clicked: Interaction | null;
  readonly drawn: Interaction | null;
  readonly count: number;
}

const WORD = 1n << 64n;

/**
 * The interactions that wait for a user's slots; see `hushstream.systems.p2b.edge.agent.TwoCandidates`.
 *
 * An interaction is a candidate when its attribution window has ended, even if it was rewarded before.
 */
export class TwoCandidates {
  resolved: readonly Resolved[] = [];
  held: readonly Candidates[] = [];

  /** @param chance h, the probability that a slot holds a clicked interaction; null if one is drawn among all. */
  constructor(
    readonly chance: number | null,
    private readonly key: Key,
  ) {}

  add(one: Resolved): void {
    this.resolved = [...this.resolved, one];
  }

  /** Advance the log time: interactions whose window has ended become candidates, in the order of their numbers. */
  settle(nowMs: number): void {
    const ended = this.resolved.filter((one) => one.deadlineMs <= nowMs).sort((one, other) => one.index - other.index);
    this.resolved = this.resolved.filter((one) => one.deadlineMs > nowMs);
    for (const one of ended) this.#observe(one);
  }

  /** Choose the interaction of a slot (null: none), and forget the slot's candidates. */
  take(slot: number): Interaction | null {
    const held = this.held.find((one) => one.slot === slot);
    this.held = this.held.filter((one) => one.slot !== slot);
    this.resolved = this.resolved.filter((one) => one.slot !== slot);
    if (held === undefined) return null;
    const limit = this.chance === null ? 0n : BigInt(Math.floor(this.chance * 2 ** 64));
    const wantsClick = this.key.word("slot-choice", slot) < limit;
    return wantsClick ? (held.clicked ?? held.drawn) : (held.drawn ?? held.clicked);
  }

  #observe({ slot, index, interaction }: Resolved): void {
    const held = this.held.find((one) => one.slot === slot) ?? { slot, clicked: null, drawn: null, count: 0 };
    let next = held;
    if (interaction.reward > 0 && this.chance !== null) {
      next = { ...held, clicked: held.clicked ?? interaction };
    } else {
      const count = held.count + 1;
      // Reservoir of one (Vitter 1985): the newest of n stays with probability 1/n.
      const stays = this.key.word("slot-candidate", index) * BigInt(count) < WORD;
      next = { ...held, drawn: stays ? interaction : held.drawn, count };
    }
    this.held = [...this.held.filter((one) => one.slot !== slot), next];
  }
}

/** The id of a slot: a pseudorandom function of the user's key and the slot's number in their life, and nothing else. */
export function reportId(key: Key, slot: number): Uint8Array {
  return key.digest("report-id", littleEndian(slot));
}
