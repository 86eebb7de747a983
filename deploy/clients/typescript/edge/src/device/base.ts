import type { Agreed } from "../agreed.js";
import { Refused, type EdgeError } from "../errors.js";
import { drawn, type OpenOptions, type Round } from "./options.js";
import { repeating } from "./repeating.js";

/** What was paid, and what the life first agreed to costs, in millionths; see `Agreed.priceFrom`. */
export interface Spent {
  readonly paid: number;
  readonly life: number;
}

/** A device of any system: it calls `sync` in its own time, and refuses an agreement that would pass the life first agreed to. */
export abstract class Device<Agreement extends Agreed, Options extends OpenOptions> {
  #onDue: () => void = () => undefined;

  protected constructor(
    protected readonly agreement: Agreement,
    protected readonly options: Options,
  ) {}

  /** Hand in what is due, and fetch the newest model. */
  abstract sync(): Promise<Round>;

  /** When something will be to do again; null if nothing is foreseen. */
  protected abstract nextMs(): number | null;

  /** Call `sync` now and whenever something is to do, at least every `everyMs`; the function that it gives ends that. */
  start(everyMs = 3_600_000, onRound: (round: Round | EdgeError) => void = () => undefined): () => void {
    const wait = (): number | null => {
      const next = this.nextMs();
      return next === null ? null : next - this.now();
    };
    const { isDue, stop } = repeating(() => this.sync(), wait, everyMs, onRound);
    this.#onDue = isDue;
    return stop;
  }

  /** Tell the calls of `start` of a slot that was not foreseen: else it would wait for the next round. */
  protected fellDue(): void {
    this.#onDue();
  }

  /** Refuse an agreement whose slots from `slot` on would pass the life; and another than that of a state without `agreeAnew`. */
  protected requireWithin({ life, paid }: Spent, slot: number, isAnother: boolean): void {
    if (life && paid + this.agreement.priceFrom(slot) > life) {
      throw new Refused(`agreement: expected further slots of at most ${life - paid} millionths, the rest of the life agreed to`);
    }
    if (isAnother && this.options.agreeAnew !== true) {
      throw new Refused("agreement: expected the configuration agreed to, got another one (agreeAnew takes it)");
    }
  }

  protected now(): number {
    return (this.options.now ?? Date.now)();
  }

  protected random(): number {
    return (this.options.random ?? drawn)();
  }
}
