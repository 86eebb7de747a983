import { Agreement, type AgreementFile } from "../agreement.js";
import { EdgeAgent, UNSPENT, covers, most, type AgentState, type Allowance, type Outcome, type SharedModel, type Slot } from "../agent.js";
import { equal, hex } from "../encoding.js";
import { EdgeError, Refused } from "../errors.js";
import type { Outcome as ValueOutcome } from "../features/kinds.js";
import { Key } from "../key.js";
import { WHOLE } from "../learner/exploration.js";
import { retryMs, verdictOf } from "./answers.js";
import { Device } from "./base.js";
import { slotBody } from "./body.js";
import { guaranteeText } from "./guarantee.js";
import { unseen, type SeenModel } from "./model.js";
import type { OpenOptions, Round } from "./options.js";
import { revisionOf } from "./packing.js";
import { packMark, packState, requireRows, unpackMark, unpackState } from "./state.js";
import type { DeviceState, DueSlot, KeptModel, Outgoing } from "./state.js";
import { queue } from "./store.js";
import { longestModel, modelOf, takeModel } from "./taking.js";
import { Tenancy } from "./tenancy.js";
import { Wire, type Answer, type Offered } from "./wire.js";

/** How a device is opened. */
export interface DeviceOptions extends OpenOptions {
  /** The application's own copy of the agreement, shipped with its code. */
  readonly agreement: AgreementFile;
}

/** What to show. */
export interface Decision {
  /** The item's number. */
  readonly item: number;
  /** Probability with which it was chosen. */
  readonly propensity: number;
  readonly modelVersion: number;
  /** Whether the device learns from feedback on it; false beyond the quota. */
  readonly learned: boolean;
  /** How each value was treated that is unknown, missing or out of range. */
  readonly values: Readonly<Record<string, ValueOutcome>>;
}

/** A slot that was sent, and the gateway's answer. */
type Answered = readonly [Outgoing, Answer | null];

const WRITES_BEHIND_MS = 100;
const STATE = "state";
/** The revision of a state that must be read before it is used. */
const UNREAD = -1;

/**
 * One person's device: learner, state and transport. All that it knows stays in its store. Only two things leave: a
 * fixed-size report for each slot that falls due, and requests for the model that everybody gets.
 */
export class EdgeDevice extends Device<Agreement, DeviceOptions> {
  /** The revision that this page wrote or read last. Each write draws a new one, so a write of another page is noticed. */
  #revision = UNREAD;
  /** Whether calls changed what is in memory since it was packed for the store. */
  #changed = false;
  #writing: ReturnType<typeof setTimeout> | undefined;
  /** The error of a write in the background; the next call throws it. */
  #fault: EdgeError | null = null;
  readonly #writes = queue();
  readonly #tenancy: Tenancy;
  #agent: EdgeAgent;
  #key: Key;
  #state: Omit<DeviceState, "agent" | "key" | "revision">;

  private constructor(
    agreement: Agreement,
    options: DeviceOptions,
    private readonly wire: Wire,
    key: Key,
    agent: EdgeAgent,
    state: Omit<DeviceState, "agent" | "key" | "revision">,
  ) {
    super(agreement, options);
    [this.#key, this.#agent, this.#state] = [key, agent, state];
    this.#tenancy = new Tenancy(options.store, {
      taken: () => this.#refresh(),
      leaving: () => this.#settle(false).catch((error: unknown) => this.#fails(error)),
    });
  }

  /** Open the device with the state in the store, or with a new one. */
  static async open(options: DeviceOptions): Promise<EdgeDevice> {
    const agreement = new Agreement(options.agreement);
    const now = options.now ?? Date.now;
    const device = new EdgeDevice(
      agreement,
      options,
      new Wire({ ...options, now }),
      await Key.drawn(),
      new EdgeAgent(agreement, await Key.drawn()),
      begun(agreement),
    );
    await device.#tenancy.run(() => undefined);
    return device;
  }

  /**
   * Choose an item for a visit.
   *
   * @param event the application's name for this decision; it gets the same answer again until the attribution window
   * ends.
   * @param values values of the declared features by name; an absent one counts as missing.
   * @param eligible the numbers of the items that may be shown; all by default.
   */
  async decide(
    event: string,
    values: Readonly<Record<string, unknown>>,
    eligible?: readonly number[],
  ): Promise<Decision> {
    if (typeof event !== "string" || event === "") throw new EdgeError("event: expected a name, got none");
    const { row, outcomes } = this.agreement.layout.schema.encode(values);
    const allowed = eligible === undefined ? null : this.#allowed(eligible);
    return this.#change((agent, nowMs) => {
      const known = agent.known(event, nowMs);
      // A clock that was set back gives no new quota: the newest period that it ever showed goes on.
      const newest = agent.allowance.period * this.agreement.terms.quota_period_ms;
      const learned = known || agent.withinQuota(Math.max(nowMs, newest));
      const found = learned ? agent.decide(event, row, nowMs, allowed) : agent.decidePublicly(row, allowed);
      if (found.slotDue) this.#fallsDue(nowMs);
      const { arm: item, billionths, modelVersion } = found;
      return { item, propensity: billionths / WHOLE, modelVersion, learned, values: outcomes };
    });
  }

  /** Note the item that was on screen: the decided one, or another. */
  shown(event: string, item?: number): Promise<Outcome> {
    return this.#change((agent) => agent.shown(event, item));
  }

  /** Learn from a reward in [0, 1]. */
  reward(event: string, reward: number, item?: number): Promise<Outcome> {
    return this.#change((agent) => agent.rewarded(event, reward, item));
  }

  /** How many decisions were made, and how many slots fell due, were sent and wait; for the person whose device it is. */
  get status(): { decided: number; due: number; sent: number; waiting: number; modelVersion: number; ended: boolean } {
    const { decided, due, sent } = this.#agent.allowance;
    const waiting = this.#state.outgoing.length + due - sent;
    return { decided, due, sent, waiting, modelVersion: this.#state.newest.version, ended: this.#state.ended };
  }

  /** The promise, and what a device cannot know, as lines of text. */
  guarantee(): string[] {
    return guaranteeText(this.options.agreement);
  }

  /** Forget what was learned of the person and what waits for feedback; what was spent stays spent. */
  async forget(): Promise<void> {
    await this.#change((agent) => {
      this.#agent = new EdgeAgent(this.agreement, this.#key, agent.allowance, agent.shared);
    });
    await this.flush();
  }

  /** Write the state; it ends when the state is on disk. Without it the device writes soon after each call. */
  flush(): Promise<void> {
    return this.#tenancy.run(() => this.#settle(true));
  }

  /**
   * Hand in the slots whose time has come, and fetch the newest model. Call it when the page opens; `start` calls it
   * regularly.
   *
   * Between its requests it computes, packs and writes nothing: the time of that would show what the device holds.
   */
  async sync(): Promise<Round> {
    await this.#takeSlots();
    const answers = await this.#send();
    let [model, refused]: [number | null, string] = [null, ""];
    let offered: Offered | null = null;
    const refuses = (error: unknown): void => {
      if (!(error instanceof Refused)) throw error;
      refused = error.message;
    };
    const ended = this.#state.ended || answers.some(([, answer]) => answer?.status === 409);
    if (!ended) offered = await this.wire.model(this.#state.seen.tag, longestModel(this.agreement)).catch(refuses) ?? null;
    const handedIn = await this.#noteAnswers(answers);
    if (offered !== null) model = await this.#takeModel(offered).catch(refuses) ?? null;
    return { handedIn, model, refused, nextMs: this.nextMs() };
  }

  // State: calls change it in memory, and it is written in the background; a slot leaves only after the state is
  // written.

  /** Run `work` on the newest state in memory. If `work` throws, it must have changed nothing. */
  #change<Result>(work: (agent: EdgeAgent, nowMs: number) => Result): Promise<Result> {
    return this.#tenancy.run(async () => {
      this.#tellFault();
      if (this.#revision === UNREAD) await this.#load();
      const nowMs = this.now();
      this.#agent.advance(nowMs);
      this.#changed = true;
      this.#writing ??= setTimeout(() => void this.#writeBehind(), WRITES_BEHIND_MS);
      return work(this.#agent, nowMs);
    });
  }

  /** Run `work` on the newest state, after writing all of it. If `work` fails, the state in the store counts. */
  #alone<Result>(work: () => Promise<Result>): Promise<Result> {
    return this.#tenancy.run(async () => {
      await this.#settle(false);
      await this.#refresh();
      try {
        const result = await work();
        if (this.#revision === UNREAD) await this.#load();
        return result;
      } catch (error) {
        this.#revision = UNREAD;
        throw error;
      }
    });
  }

  async #writeBehind(): Promise<void> {
    this.#writing = undefined;
    if (!this.#changed) return;
    // Pack between two works, so that no half-done work is stored; write while others go on.
    let written: Promise<void> = Promise.resolve();
    const packed = this.#tenancy.run(() => void (written = this.#saveChanged(false)));
    await packed.then(() => written).catch((error: unknown) => this.#fails(error));
  }

  /** Wait until what was changed is written. */
  async #settle(durable: boolean): Promise<void> {
    this.#tellFault();
    await this.#saveChanged(durable);
    this.#tellFault();
  }

  #saveChanged(durable: boolean): Promise<void> {
    return this.#changed ? this.#save(durable) : this.#writes(async () => undefined);
  }

  #fails(error: unknown): void {
    this.#fault = error instanceof EdgeError ? error : new EdgeError(`storage: expected to keep the device's state, got ${String(error)}`);
  }

  #tellFault(): void {
    const fault = this.#fault;
    this.#fault = null;
    if (fault !== null) throw fault;
  }

  /** Read the state again if another page wrote it, or if the store was restored to the state that this page knows. */
  async #refresh(): Promise<void> {
    const content = await this.options.store.read(STATE);
    const isKnown = content !== null && revisionOf(content) === this.#revision;
    const { spent, isAnother } = await this.#marked();
    if (!isKnown || isAnother || !covers(this.#agent.allowance, spent)) await this.#load(content);
  }

  async #load(given?: Uint8Array | null): Promise<void> {
    [this.#revision, this.#changed] = [UNREAD, false];
    await this.#read(given);
    if (this.#revision === UNREAD) await this.#save(true, true);
  }

  /** Take the state and the revision of the store; or begin a new state with what was spent, without a revision. */
  async #read(given?: Uint8Array | null): Promise<void> {
    const content = given === undefined ? await this.options.store.read(STATE) : given;
    const { spent, isAnother } = await this.#marked();
    if (content === null) {
      // The state was cleared, or never there: what the mark says was spent stays spent.
      this.requireWithin(spent, spent.due, isAnother);
      this.#key = await Key.drawn();
      this.#begin(spent, unseen(this.agreement));
      return;
    }
    const found = unpackState(this.agreement, content, null);
    this.#key = await Key.of(found.key);
    if (!equal(found.configuration, this.agreement.configuration)) {
      const all = this.#dropped(most(found.agent.allowance, spent));
      this.requireWithin(all, all.due, true);
      // Write the mark first: with the old period in the mark, the new state's quota would never begin.
      await this.options.mark.write(packMark(this.agreement.configuration, all));
      this.#begin(all, unseen(this.agreement));
      return;
    }
    const [newest, base] = [await this.#model(found.newest), await this.#model(found.base)];
    const state = unpackState(this.agreement, content, base);
    requireRows(this.agreement, state.agent);
    const { agent, key: _key, revision: _revision, ...rest } = state;
    this.#state = rest;
    // An older copy of the state: the slots that it would send were sent.
    const all = most(agent.allowance, spent);
    this.requireWithin(all, all.due, isAnother);
    if (!covers(agent.allowance, spent)) return this.#begin(all, state.seen, newest);
    // An earlier write of the mark failed: what leaves from here on must stay spent even if the state is cleared.
    if (isAnother || !covers(spent, all)) await this.options.mark.write(packMark(this.agreement.configuration, all));
    this.#agent = EdgeAgent.resumed(this.agreement, this.#key, agent, newest);
    this.#revision = state.revision;
  }

  async #marked(): Promise<{ spent: Allowance; isAnother: boolean }> {
    const mark = unpackMark(await this.options.mark.read());
    if (mark === null) return { spent: UNSPENT, isAnother: false };
    const isAnother = mark.configuration !== hex(this.agreement.configuration);
    return { spent: isAnother ? this.#dropped(mark.spent) : mark.spent, isAnother };
  }

  /**
   * What was spent under another agreement, as the Python agent has it: without the slots owed, which were paid at its
   * price, the visits towards its next slot, and its quota, as periods may have another length.
   */
  #dropped(spent: Allowance): Allowance {
    const decided = spent.due * this.agreement.terms.after_interactions;
    return { ...spent, decided, sent: spent.due, first: -1, period: 0, used: 0 };
  }

  #begin(spent: Allowance, seen: SeenModel, shared?: SharedModel): void {
    const newest = shared === undefined ? undefined : this.#state.newest;
    this.#state = { ...begun(this.agreement), seen, ...(newest && { newest }) };
    this.#agent = new EdgeAgent(this.agreement, this.#key, spent, shared);
    this.#state = { ...this.#state, due: this.#owed(spent) };
  }

  /** The slots that fell due and were not taken, each with a new delay from now on. */
  #owed({ due, sent }: Allowance): DueSlot[] {
    return Array.from({ length: due - sent }, () => this.#delayed(this.now()));
  }

  async #model(kept: KeptModel): Promise<SharedModel> {
    if (kept.version === 0) return { version: 0, model: this.agreement.cold };
    const content = await this.options.store.read(named(kept));
    if (content === null) throw new EdgeError(`state: expected the content of model ${kept.version}, got none`);
    return { version: kept.version, model: modelOf(this.agreement, content, kept.rewardVariance) };
  }

  /**
   * Pack the state in memory now, and write it after the write in progress. If the store was cleared or restored in the
   * meantime, nothing is written: the store counts, as if this page had begun with it. `anew`: the state was just begun
   * from the store.
   */
  #save(durable: boolean, anew = false): Promise<void> {
    const { store, mark } = this.options;
    const agent: AgentState = this.#agent.state;
    const base = agent.own === null ? this.#state.newest : this.#kept(agent.own.base);
    const unused = base.version === this.#state.base.version ? null : this.#state.base;
    this.#state = { ...this.#state, base };
    this.#changed = false;
    const revision = crypto.getRandomValues(new Uint32Array(1))[0]!;
    const state = packState({ revision, key: this.#key.material, agent, ...this.#state });
    const spent = packMark(this.agreement.configuration, agent.allowance);
    return this.#writes(async () => {
      try {
        if (!anew && (await this.#isReplaced())) {
          this.#revision = UNREAD;
          return;
        }
        await store.write(STATE, state, durable);
        await mark.write(spent);
        if (unused !== null && unused.version !== this.#state.newest.version) await store.remove(named(unused));
        this.#revision = revision;
      } catch (error) {
        this.#revision = UNREAD;
        throw error;
      }
    });
  }

  async #isReplaced(): Promise<boolean> {
    const content = await this.options.store.read(STATE);
    return content === null || revisionOf(content) !== this.#revision;
  }

  #kept({ version, model }: SharedModel): KeptModel {
    return { version, rewardVariance: model.rewardVariance };
  }

  // Slots.

  #fallsDue(nowMs: number): void {
    this.#state = { ...this.#state, due: [...this.#state.due, this.#delayed(nowMs)] };
    this.fellDue();
  }

  /** The delay is drawn once, and independent of everything. */
  #delayed(dueMs: number): DueSlot {
    return { dueMs, delayMs: Math.floor(this.random() * this.agreement.slot.delay_ms) };
  }

  async #takeSlots(): Promise<void> {
    const wait = this.agreement.terms.attribution_window_ms;
    await this.#alone(async () => {
      const nowMs = this.now();
      this.#agent.advance(nowMs);
      const isOver = (one: DueSlot): boolean => one.dueMs + wait + one.delayMs <= nowMs;
      const over = this.#state.due.filter(isOver);
      if (!over.length || this.#state.ended) return;
      const taken: Outgoing[] = [];
      for (let left = over.length; left > 0; left -= 1) {
        const slot = this.#agent.takeSlot(nowMs);
        const body = await this.#sealed(slot, nowMs);
        taken.push({ ...slot, body, fromMs: nowMs, attempts: 0, resealed: false, fault: "" });
      }
      const due = this.#state.due.filter((one) => !isOver(one));
      this.#state = { ...this.#state, due, outgoing: [...this.#state.outgoing, ...taken] };
      await this.#save(true);
    });
  }

  async #send(): Promise<Answered[]> {
    const answers: Answered[] = [];
    for (const one of this.#state.outgoing.filter((item) => item.fault === "" && item.fromMs <= this.now())) {
      if (this.#holds(one)) answers.push([one, await this.wire.slot(one.body)]);
    }
    return answers;
  }

  /** How many slots were handed in. */
  async #noteAnswers(answers: readonly Answered[]): Promise<number> {
    if (!answers.length) return 0;
    return this.#alone(async () => {
      let [handedIn, held] = [0, false];
      for (const [one, answer] of answers) {
        const next = await this.#answered(one, answer);
        if (next === "handed in") handedIn += 1;
        if (!this.#holds(one)) continue;
        held = true;
        const others = this.#state.outgoing.filter((other) => !equal(other.reportId, one.reportId));
        const ended = this.#state.ended || next === "ended";
        const outgoing = ended ? [] : typeof next === "object" ? [...others, next] : others;
        this.#state = { ...this.#state, ended, outgoing };
      }
      if (held) await this.#save(true);
      return handedIn;
    });
  }

  /** Whether a slot still waits: it was not cleared, answered or sealed again in the meantime. */
  #holds({ body }: Outgoing): boolean {
    return this.#state.outgoing.some((other) => equal(other.body, body));
  }

  async #answered(one: Outgoing, answer: Answer | null): Promise<Outgoing | "handed in" | "ended"> {
    const nowMs = this.now();
    const verdict = verdictOf(answer);
    const fromMs = nowMs + retryMs(one.attempts, answer, this.random());
    const later = { ...one, attempts: one.attempts + 1, fromMs };
    if (verdict === "later") return later;
    if (verdict === "stale" && !one.resealed) {
      return { ...later, body: await this.#sealed(one, nowMs, answer?.dateMs ?? nowMs), resealed: true };
    }
    if (verdict === "handed in" || verdict === "ended") return verdict;
    return { ...one, fault: answer?.code || String(answer?.status) };
  }

  /**
   * Seal a slot for the gateway's time, but never to a key that was replaced before the device's own time: somebody else
   * may have that key by now.
   */
  #sealed(slot: Slot, nowMs: number, toldMs = nowMs): Promise<Uint8Array> {
    const [own, told] = [nowMs, toldMs].map((ms) => Math.floor(ms / this.agreement.slot.period_ms)) as [number, number];
    return slotBody(this.agreement, this.#state.seen.sealing, slot, told, Math.max(own, told));
  }

  // Models.

  #takeModel(found: Offered): Promise<number | null> {
    return this.#alone(async () => {
      const { seen, newest } = this.#state;
      const taken = await takeModel(this.agreement, seen, found.body, found.tag, this.now());
      if (taken.shared.version === newest.version) {
        // The same model, perhaps with newer keys.
        this.#state = { ...this.#state, seen: taken.seen };
        await this.#save(true);
        return null;
      }
      const kept = this.#kept(taken.shared);
      await this.options.store.write(named(kept), taken.content, true);
      this.#state = { ...this.#state, newest: kept, seen: taken.seen };
      this.#agent.shared = taken.shared;
      await this.#save(true);
      if (this.#revision === UNREAD) return null;
      if (newest.version !== 0 && newest.version !== this.#state.base.version) await this.options.store.remove(named(newest));
      return kept.version;
    });
  }

  protected override nextMs(): number | null {
    const wait = this.agreement.terms.attribution_window_ms;
    const times = [
      ...this.#state.due.map((one) => one.dueMs + wait + one.delayMs),
      ...this.#state.outgoing.filter((one) => one.fault === "").map((one) => one.fromMs),
    ];
    return times.length && !this.#state.ended ? Math.min(...times) : null;
  }

  #allowed(eligible: readonly number[]): boolean[] {
    if (eligible.length === 0) throw new EdgeError("eligible: expected an item, got none");
    const allowed = new Array<boolean>(this.agreement.layout.arms).fill(false);
    for (const item of eligible) {
      if (allowed[item] === undefined) throw new EdgeError(`eligible: expected items below ${allowed.length}, got another`);
      allowed[item] = true;
    }
    return allowed;
  }
}

function begun(agreement: Agreement): Omit<DeviceState, "agent" | "key" | "revision"> {
  const none = { version: 0, rewardVariance: 1 };
  const { configuration } = agreement;
  return { configuration, newest: none, base: none, seen: unseen(agreement), due: [], outgoing: [], ended: false };
}

function named({ version }: KeptModel): string {
  return `model-${version}`;
}
