import type { Agreement } from "../agreement.js";
import { UNSPENT, type AgentState, type Allowance, type OpenDecision, type SharedModel } from "../agent.js";
import { hex } from "../encoding.js";
import { BadState } from "../errors.js";
import type { Candidates, Interaction, Resolved } from "../learner/candidates.js";
import { OwnSteps } from "../learner/sparse.js";
import type { SeenModel } from "./model.js";
import { packed, unpacked } from "./packing.js";

/** A slot that is due, and its random delay. */
export interface DueSlot {
  readonly dueMs: number;
  readonly delayMs: number;
}

/** A slot whose content is fixed and whose bytes may leave. */
export interface Outgoing {
  readonly reportId: Uint8Array;
  readonly content: Uint8Array;
  readonly body: Uint8Array;
  /** When the next attempt may be made; `attempts`: how many were made. */
  readonly fromMs: number;
  readonly attempts: number;
  /** Whether it was sealed again for another period, which happens at most once. */
  readonly resealed: boolean;
  /** The code of a problem that would come again if the slot was sent again; empty if there is none. */
  readonly fault: string;
}

/** A model whose content must stay in the store: the newest one, or the one from which the user's own state started. */
export interface KeptModel {
  readonly version: number;
  readonly rewardVariance: number;
}

/** Everything that a device keeps, without the contents of models. */
export interface DeviceState {
  readonly revision: number;
  readonly configuration: Uint8Array;
  readonly key: Uint8Array;
  readonly agent: AgentState;
  readonly newest: KeptModel;
  readonly base: KeptModel;
  readonly seen: SeenModel;
  readonly due: readonly DueSlot[];
  readonly outgoing: readonly Outgoing[];
  /** Whether the gateway said that the deployment has ended. */
  readonly ended: boolean;
}

const FORMAT = 1;

/** Pack a state into bytes for a store. */
export function packState(state: DeviceState): Uint8Array {
  const { own, ...agent } = state.agent;
  const steps = own === null ? null : own.steps.dump();
  const { revision, ...rest } = state;
  return packed(FORMAT, revision, { ...rest, agent: { ...agent, steps } });
}

/** What `packState` gave, with the models that it stands on. */
export function unpackState(agreement: Agreement, content: Uint8Array, base: SharedModel | null): DeviceState {
  const found = unpacked<DeviceState & { agent: AgentState & { steps: Uint8Array | null } }>(FORMAT, content);
  requireShape(found);
  const { steps, ...agent } = found.agent;
  const { arms, cells } = agreement.layout;
  const own = steps === null || base === null ? null : { base, steps: OwnSteps.load(steps, arms, cells) };
  return { ...found, agent: { ...agent, own } };
}

/** Refuse what is cut or changed; rows are `requireRows`'s to check. */
function requireShape({ agent, ...state }: DeviceState): void {
  const bytes = [state.key, state.configuration, ...(state.outgoing ?? []).map((one) => one?.body)];
  const lists = [state.due, state.outgoing, agent?.open, agent?.answered, agent?.resolved, agent?.candidates];
  const keys = [state.seen?.signing, state.seen?.sealing];
  const good =
    bytes.every((one) => one instanceof Uint8Array) &&
    [...lists, ...keys].every(Array.isArray) &&
    keys.every((one) => one.length > 0 && one.every((key) => key?.publicKey instanceof Uint8Array)) &&
    [state.newest, state.base].every((one) => Number.isSafeInteger(one?.version)) &&
    isAllowance(agent.allowance);
  if (!good) throw new BadState("state: expected what this package wrote, got something else");
}

/** Refuse a state whose rows or arms do not fit the agreement, because they would go into slots. */
export function requireRows(agreement: Agreement, { open, resolved, candidates }: AgentState): void {
  const interactions = [
    ...open.map(([, one]: readonly [string, OpenDecision]) => one),
    ...resolved.map((one: Resolved) => one.interaction),
    ...candidates.flatMap((one: Candidates) => [one.clicked, one.drawn]).filter((one): one is Interaction => one !== null),
  ];
  for (const { row, arm } of interactions) {
    agreement.layout.schema.require(row);
    if (!Number.isInteger(arm) || arm < 0 || arm >= agreement.layout.arms) {
      throw new BadState("state: expected items of the agreement, got others");
    }
  }
}

/** What was spent, and under which agreement (its configuration as digits): a slot that is owed was paid at that one's price. */
export interface Mark {
  readonly spent: Allowance;
  readonly configuration: string;
}

/** The text of a mark. */
export function packMark(configuration: Uint8Array, spent: Allowance): string {
  return JSON.stringify({ format: FORMAT, configuration: hex(configuration), ...spent });
}

/** Read a mark's text; null if there is no mark. */
export function unpackMark(text: string | null): Mark | null {
  if (text === null) return null;
  let found: Record<string, unknown>;
  try {
    found = JSON.parse(text) as Record<string, unknown>;
  } catch {
    throw new BadState("mark: expected what this package wrote, got something else");
  }
  const { format, configuration, ...spent } = found ?? {};
  if (format === FORMAT && typeof configuration === "string" && isAllowance(spent)) return { spent, configuration };
  throw new BadState("mark: expected what this package wrote, got something else");
}

function isAllowance(found: unknown): found is Allowance {
  const counts = (found ?? {}) as Record<string, unknown>;
  return Object.keys(UNSPENT).every((name) => Number.isSafeInteger(counts[name]));
}
