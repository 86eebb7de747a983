// Made by generate.py from deploy/openapi; `make manifests` makes it again.

import { Gateway, type CallOptions } from "./gateway.js";

/** A privacy cost, (epsilon, delta), under zero-out. */
export interface Amount {
  epsilon: number;
  delta: number;
}

/** How often one user is shown an item, at most. */
export interface CapPut {
  shows: number;
  within_seconds: number;
}

/** What became of the items. */
export interface CatalogueAnswered {
  /** Version of the catalogue with all of them. */
  version: number;
  added: number;
  changed: number;
  restored: number;
  retired: number;
  unchanged: number;
}

/** Items to offer and items to stop showing. */
export interface CatalogueAsked {
  /** New or retired ones, or ones that change. */
  items?: ItemPut[];
  /** Ids that are shown no more. */
  retire?: string[];
}

/** What users with the shared model earn, compared with others. */
export interface Comparison {
  /** What it is compared with. */
  over: string;
  /** The guardrail's harm that is compared; empty where rewards are. */
  harm: string;
  /** How much more a decision earns (or harms); null while the noise hides it. */
  difference: number | null;
  /** Lower end of its 95 % confidence interval. */
  low: number | null;
  /** Upper end of its 95 % confidence interval. */
  high: number | null;
  /** Noised number of decisions counted so far, on both sides. */
  counted: number;
  /** About how many decisions exclude 0 if the difference stays; null if no number does. */
  needed: number | null;
}

/** The item to show. */
export interface DecisionAnswered {
  event_id: string;
  /** An item of `GET /v1/items`: its id if items have names, else its number, from 0. */
  item: number | string;
  /** Probability that the learner chose it; null if none chose. */
  propensity: number | null;
  /** `model`; `baseline`: what everybody gets; `repeated`: this event had been decided; `no_learner`, `timeout`: the request's own baseline, as no learner answered; `shadow`: the request's own baseline, as the deployment is in shadow mode and its learner's answer is only in the log. */
  policy: "model" | "baseline" | "repeated" | "shadow" | "timeout" | "no_learner" | "refused";
  model_version: number;
  /** Whether the log holds this answer. Feedback on one with false is refused: `not-logged`. */
  logged: boolean;
  /** Items that the request named and that are retired: they were left out. */
  retired?: (number | string)[];
  /** Features with a value outside of their vocabulary, which counted as unknown. */
  unknown?: string[];
}

/** Which item to show a user. */
export interface DecisionAsked {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The account: any name that stays the same. */
  user: string;
  context: number[] | Record<string, unknown>;
  items?: (number | string)[] | null;
  /** The shared model that a new user starts from. */
  track?: string | null;
  /** The item to show when no learner answers, and the one to compare with. */
  baseline?: number | string | null;
}

/** How much of the measurement's harm an event did. */
export interface HarmTold {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The user of the event; may be left out for events that this gateway remembers. */
  user?: string | null;
  harm: number;
}

/** An item as it shall be offered. */
export interface ItemPut {
  /** Its id, as the application names it. */
  item: string;
  /** The name that people read. */
  title?: string;
  /** Its public features by name, as declared. */
  features?: Record<string, unknown>;
  /** Shown before all items that are not pinned, where allowed. */
  pinned?: boolean;
  /** Its cap for each user; null for none. */
  cap?: CapPut | null;
}

/** The A/B measurement, of its newest releases. */
export interface Measured {
  comparisons: Comparison[];
  /** How to read it, or why there is nothing yet. */
  about: string;
}

/** What the shared model brings, and what was paid for it. */
export interface OverviewAnswered {
  /** Null in a deployment that measures nothing. */
  measurement: Measured | null;
  budget: Paid[];
}

/** What one privacy unit has paid, at most, and what it may pay. */
export interface Paid {
  /** Who or what pays. */
  unit: string;
  limit: Amount;
  paid: Amount;
  /** The largest further charge that fits. */
  left: Amount;
  /** What is released on a charge, in words. */
  released: string;
  /** How many such releases the ledger holds. */
  releases: number;
  /** How many more a partition can make; null: any number, each pays for itself. */
  releases_left: number | null;
}

/** The items to show, the first one first. */
export interface RankAnswered {
  event_id: string;
  /** One for each position, with the event that its feedback must name: the request's own for the first one, then `ID#2`, `ID#3`. A propensity is the probability of the item given those before it. */
  ranked: DecisionAnswered[];
  /** Whether the log holds the answers of all positions. */
  logged: boolean;
  /** As of `decide`, of the whole slate. */
  retired?: (number | string)[];
  /** As of `decide`. */
  unknown?: string[];
}

/** Which items to show a user, in which order. */
export interface RankAsked {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The account: any name that stays the same. */
  user: string;
  context: number[] | Record<string, unknown>;
  items?: (number | string)[] | null;
  /** The shared model that a new user starts from. */
  track?: string | null;
  /** How many to rank; fewer come if there are fewer items. */
  positions?: number;
  /** The items to show, in this order, from the first position that no learner answers. */
  baseline?: (number | string)[] | null;
}

/** The reward of an item that was on screen. */
export interface RewardTold {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The user of the event; may be left out for events that this gateway remembers. */
  user?: string | null;
  /** The item that was on screen; by default the decided one. */
  item?: number | string | null;
  reward: number;
}

/** An item was on screen. */
export interface ShownTold {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The user of the event; may be left out for events that this gateway remembers. */
  user?: string | null;
  /** The item that was on screen; by default the decided one. */
  item?: number | string | null;
}

/** The items that are most like it, the nearest first. */
export interface SimilarAnswered {
  /** An item of `GET /v1/items`: its id if items have names, else its number, from 0. */
  item: number | string;
  similar: SimilarItem[];
  /** Of the released model. */
  version: number;
  /** False if a release was made under a seeded key. */
  private_as_stated: boolean;
  /** The same in words. */
  about: string;
}

/** Which item others are compared with. */
export interface SimilarAsked {
  /** An item of `GET /v1/items`: its id if items have names, else its number, from 0. */
  item: number | string;
  /** How many to name. */
  most?: number;
}

/** An item beside the one that was asked for. */
export interface SimilarItem {
  /** An item of `GET /v1/items`: its id if items have names, else its number, from 0. */
  item: number | string;
  /** Root mean square difference of what visits prefer, in rewards a decision. */
  distance: number;
  /** The distance that two equal items have by the uncertainty of both. */
  noise: number;
  /** Whether they differ by more (95 %); else the noise hides it. */
  told_apart: boolean;
}

/** The answer to feedback: it is in the log. */
export interface Taken {
  /** Always true: the log holds it. */
  logged: boolean;
}

/** An error in the form of RFC 9457. */
export interface Problem {
  type: "urn:hushstream:problem:malformed-http" | "urn:hushstream:problem:malformed-json" | "urn:hushstream:problem:invalid-request" | "urn:hushstream:problem:bad-slot" | "urn:hushstream:problem:identifying-header" | "urn:hushstream:problem:unauthorized" | "urn:hushstream:problem:not-an-operator" | "urn:hushstream:problem:not-attested" | "urn:hushstream:problem:no-model" | "urn:hushstream:problem:not-found" | "urn:hushstream:problem:unknown-event" | "urn:hushstream:problem:method-not-allowed" | "urn:hushstream:problem:slow-request" | "urn:hushstream:problem:event-conflict" | "urn:hushstream:problem:feedback-conflict" | "urn:hushstream:problem:not-logged" | "urn:hushstream:problem:other-configuration" | "urn:hushstream:problem:body-too-large" | "urn:hushstream:problem:unsupported-media-type" | "urn:hushstream:problem:wrong-host" | "urn:hushstream:problem:stale-period" | "urn:hushstream:problem:bad-context" | "urn:hushstream:problem:baseline-missing" | "urn:hushstream:problem:unknown-item" | "urn:hushstream:problem:bad-item" | "urn:hushstream:problem:catalogue-full" | "urn:hushstream:problem:catalogue-changed" | "urn:hushstream:problem:unknown-user" | "urn:hushstream:problem:unknown-track" | "urn:hushstream:problem:bad-reward" | "urn:hushstream:problem:no-guardrail" | "urn:hushstream:problem:bad-record" | "urn:hushstream:problem:bad-ratings" | "urn:hushstream:problem:refused-by-learner" | "urn:hushstream:problem:too-many-requests" | "urn:hushstream:problem:too-busy" | "urn:hushstream:problem:internal" | "urn:hushstream:problem:log-unavailable" | "urn:hushstream:problem:no-answer" | "urn:hushstream:problem:stopping";
  title: string;
  status: 400 | 401 | 403 | 404 | 405 | 408 | 409 | 413 | 415 | 421 | 422 | 429 | 500 | 503;
  code: "malformed-http" | "malformed-json" | "invalid-request" | "bad-slot" | "identifying-header" | "unauthorized" | "not-an-operator" | "not-attested" | "no-model" | "not-found" | "unknown-event" | "method-not-allowed" | "slow-request" | "event-conflict" | "feedback-conflict" | "not-logged" | "other-configuration" | "body-too-large" | "unsupported-media-type" | "wrong-host" | "stale-period" | "bad-context" | "baseline-missing" | "unknown-item" | "bad-item" | "catalogue-full" | "catalogue-changed" | "unknown-user" | "unknown-track" | "bad-reward" | "no-guardrail" | "bad-record" | "bad-ratings" | "refused-by-learner" | "too-many-requests" | "too-busy" | "internal" | "log-unavailable" | "no-answer" | "stopping";
  detail: string;
  errors?: {
    pointer: string;
    detail: string;
  }[];
}

/** One value for each item that was asked for. */
export interface RatingsAnswered {
  event_id: string;
  values: number[];
  model_version: number;
  /** Always true: the log holds this answer. */
  logged: boolean;
}

/** The predicted ratings of items by a user. */
export interface RatingsAsked {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The account: any name that stays the same. */
  user: string;
  items: number[];
}

/** Ratings of items by a user; of several ratings of one item the last one counts. */
export interface RatingsTold {
  /** The account: any name that stays the same. */
  user: string;
  items: number[];
  /** One for each item, on the scale. */
  ratings: number[];
}

/** The true label of a record that was predicted. */
export interface LabelTold {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** 1 or -1. */
  label: number;
  /** Like `node`, may be left out for events of this gateway. */
  user?: string | null;
  node?: number | null;
}

/** The label. */
export interface PredictionAnswered {
  event_id: string;
  /** 1 or -1; 0 if the record breaks a bound. */
  label: number;
  model_version: number;
  /** Always true: the log holds this answer. */
  logged: boolean;
}

/** Which label a record has: its coordinates that are not 0. */
export interface PredictionAsked {
  /** Names this request: a new name, unique over all users. */
  event_id: string;
  /** The account: any name that stays the same. */
  user: string;
  /** The number of the node that holds the record, from 0. */
  node: number;
  /** Each index once. */
  indices?: number[];
  /** One for each index; their L2 norm is at most 1. */
  values?: number[];
  /** Instead of `indices` and `values`, if features are declared: values by name; one that is absent or null is missing. */
  record?: Record<string, unknown> | null;
}

/** What a program tells problems apart by. */
export type ProblemCode = Problem["code"];

/** hushstream: Decisions: which item to show a user */
export class DecisionClient extends Gateway {
  /** Which item to show. The same request under one event id gets the same answer. If no learner answers, `baseline` comes at once. */
  decide(asked: DecisionAsked, options?: CallOptions): Promise<DecisionAnswered> {
    return this.post("/v1/decide", asked, options);
  }

  /** Which item to show: many requests at once. Each request gets its own answer, or a problem with a code. */
  decideBatch(requests: readonly DecisionAsked[], options?: CallOptions): Promise<(DecisionAnswered | Problem)[]> {
    return this.postBatch("/v1/decide/batch", requests, options);
  }

  /** Which items to show, in which order. The same request under one event id gets the same slate. A position is a decision of its own among the items that those before it left, and counts as an interaction of the user's. `shown` and `reward` name a position's event. */
  rank(asked: RankAsked, options?: CallOptions): Promise<RankAnswered> {
    return this.post("/v1/rank", asked, options);
  }

  /** Which items to show, in which order: many requests at once. Each request gets its own answer, or a problem with a code. */
  rankBatch(requests: readonly RankAsked[], options?: CallOptions): Promise<(RankAnswered | Problem)[]> {
    return this.postBatch("/v1/rank/batch", requests, options);
  }

  /** The item was on screen. The learner learns only from items that were shown; without a reward, an item counts as 0. */
  shown(asked: ShownTold, options?: CallOptions): Promise<Taken> {
    return this.post("/v1/shown", asked, options);
  }

  /** The item was on screen: many requests at once. Each request gets its own answer, or a problem with a code. */
  shownBatch(requests: readonly ShownTold[], options?: CallOptions): Promise<(Taken | Problem)[]> {
    return this.postBatch("/v1/shown/batch", requests, options);
  }

  /** The reward of the item. The first reward of an event counts; an equal one after it changes nothing. */
  reward(asked: RewardTold, options?: CallOptions): Promise<Taken> {
    return this.post("/v1/reward", asked, options);
  }

  /** The reward of the item: many requests at once. Each request gets its own answer, or a problem with a code. */
  rewardBatch(requests: readonly RewardTold[], options?: CallOptions): Promise<(Taken | Problem)[]> {
    return this.postBatch("/v1/reward/batch", requests, options);
  }

  /** The harm that the measurement's guardrail counts. A complaint, a return: what `measurement.guardrail` names. Nothing learns from it; without a call there was none. */
  harm(asked: HarmTold, options?: CallOptions): Promise<Taken> {
    return this.post("/v1/harm", asked, options);
  }

  /** The harm that the measurement's guardrail counts: many requests at once. Each request gets its own answer, or a problem with a code. */
  harmBatch(requests: readonly HarmTold[], options?: CallOptions): Promise<(Taken | Problem)[]> {
    return this.postBatch("/v1/harm/batch", requests, options);
  }

  /** Name items that visits like as they like another one. By the newest released model of declared features (p2b): post-processing, which costs no privacy. */
  similar(asked: SimilarAsked, options?: CallOptions): Promise<SimilarAnswered> {
    return this.post("/v1/similar", asked, options);
  }

  /** Name items that visits like as they like another one: many requests at once. Each request gets its own answer, or a problem with a code. */
  similarBatch(requests: readonly SimilarAsked[], options?: CallOptions): Promise<(SimilarAnswered | Problem)[]> {
    return this.postBatch("/v1/similar/batch", requests, options);
  }

  /** Change the catalogue (operators). Nothing is changed where one item cannot be taken. Half a megabyte of changes is one version, all or none; more are a few. Learners show the items from their next batch on; no worker restarts, no epsilon is spent. Decide by stock and contracts, not by clicks: the catalogue is public. `GET /v1/catalogue` shows it. */
  catalogue(asked: CatalogueAsked, options?: CallOptions): Promise<CatalogueAnswered> {
    return this.post("/v1/catalogue", asked, options);
  }

  /** What it is now */
  catalogueNow(options?: CallOptions): Promise<Record<string, unknown>> {
    return this.read("/v1/catalogue", options);
  }

  /** What the shared model brings, and what was charged (operators). Released figures alone: no click moves them before a release does. */
  overview(options?: CallOptions): Promise<OverviewAnswered> {
    return this.read("/v1/overview", options);
  }

  /** The items that requests may name */
  items(options?: CallOptions): Promise<{
    items: Record<string, unknown>[];
  }> {
    return this.read("/v1/items", options);
  }

  /** What this deployment accepts */
  schema(options?: CallOptions): Promise<Record<string, unknown>> {
    return this.read("/v1/schema", options);
  }
}

/** hushstream: Ratings: what a user will rate items */
export class RatingClient extends Gateway {
  /** Ratings of items by a user. From then on the user takes part in every round. Equal ratings after them change nothing. */
  rate(asked: RatingsTold, options?: CallOptions): Promise<Taken> {
    return this.post("/v1/rate", asked, options);
  }

  /** Ratings of items by a user: many requests at once. Each request gets its own answer, or a problem with a code. */
  rateBatch(requests: readonly RatingsTold[], options?: CallOptions): Promise<(Taken | Problem)[]> {
    return this.postBatch("/v1/rate/batch", requests, options);
  }

  /** Predicted ratings of items by a user. The same request under the same event id gets the same answer. */
  predict(asked: RatingsAsked, options?: CallOptions): Promise<RatingsAnswered> {
    return this.post("/v1/predict", asked, options);
  }

  /** Predicted ratings of items by a user: many requests at once. Each request gets its own answer, or a problem with a code. */
  predictBatch(requests: readonly RatingsAsked[], options?: CallOptions): Promise<(RatingsAnswered | Problem)[]> {
    return this.postBatch("/v1/predict/batch", requests, options);
  }

  /** The items that requests may name */
  items(options?: CallOptions): Promise<{
    items: Record<string, unknown>[];
  }> {
    return this.read("/v1/items", options);
  }

  /** What this deployment accepts */
  schema(options?: CallOptions): Promise<Record<string, unknown>> {
    return this.read("/v1/schema", options);
  }
}

/** hushstream: Records: which label a record has */
export class RecordClient extends Gateway {
  /** Which label a record has. The same request under the same event id gets the same answer. */
  predict(asked: PredictionAsked, options?: CallOptions): Promise<PredictionAnswered> {
    return this.post("/v1/predict", asked, options);
  }

  /** Which label a record has: many requests at once. Each request gets its own answer, or a problem with a code. */
  predictBatch(requests: readonly PredictionAsked[], options?: CallOptions): Promise<(PredictionAnswered | Problem)[]> {
    return this.postBatch("/v1/predict/batch", requests, options);
  }

  /** The true label. The first label of an event counts; an equal one after it changes nothing. */
  label(asked: LabelTold, options?: CallOptions): Promise<Taken> {
    return this.post("/v1/label", asked, options);
  }

  /** The true label: many requests at once. Each request gets its own answer, or a problem with a code. */
  labelBatch(requests: readonly LabelTold[], options?: CallOptions): Promise<(Taken | Problem)[]> {
    return this.postBatch("/v1/label/batch", requests, options);
  }

  /** The items that requests may name */
  items(options?: CallOptions): Promise<{
    items: Record<string, unknown>[];
  }> {
    return this.read("/v1/items", options);
  }

  /** What this deployment accepts */
  schema(options?: CallOptions): Promise<Record<string, unknown>> {
    return this.read("/v1/schema", options);
  }
}
