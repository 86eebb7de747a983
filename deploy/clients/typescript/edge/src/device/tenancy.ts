import { queue, type Store } from "./store.js";

/** What a page does when it gets the store, and before it releases it. */
export interface Turn {
  /** Read what another page may have written in the meantime. */
  taken(): Promise<void>;
  /** Write what is only in memory. */
  leaving(): Promise<void>;
}

/**
 * Keeps a store for this page until another page asks for it, so that calls in the meantime need no lock and no
 * reading. Works run one after another.
 */
export class Tenancy {
  readonly #next = queue();
  #leave: (() => void) | null = null;

  constructor(
    private readonly store: Store,
    private readonly turn: Turn,
  ) {}

  /** Run `work` while no other page uses the store. */
  run<Result>(work: () => Promise<Result> | Result): Promise<Result> {
    return this.#next(async () => {
      if (this.#leave === null) await this.#take();
      return work();
    });
  }

  #take(): Promise<void> {
    return new Promise((resolve, reject) => {
      const over = this.store.alone(async (asked) => {
        await this.turn.taken();
        const left = new Promise<void>((leave) => (this.#leave = leave));
        void asked.then(() => this.#giveUp());
        resolve();
        await left;
      });
      over.catch(reject);
    });
  }

  /** Release the store, after the works that are in the queue. */
  #giveUp(): Promise<void> {
    return this.#next(async () => {
      await this.turn.leaving();
      this.#leave?.();
      this.#leave = null;
    });
  }
}
