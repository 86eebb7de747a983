import type { Problem, ProblemCode } from "./generated.js";

/** What every error of this package is; an abort of the caller's own signal is passed on as it came. */
export class HushstreamError extends Error {
  override name = "HushstreamError";
}

/** The gateway refused: its problem document (RFC 9457). */
export class ProblemError extends HushstreamError {
  override name = "ProblemError";

  /**
   * @param problem the document.
   * @param retryAfterSeconds after how long the gateway takes the same request again; undefined where it would end alike.
   */
  constructor(
    readonly problem: Problem,
    readonly retryAfterSeconds: number | undefined,
  ) {
    super(`${problem.code}: ${problem.detail}`);
  }

  /** Stable, for programs: it never changes its meaning. */
  get code(): ProblemCode {
    return this.problem.code;
  }

  /** The status of HTTP. */
  get status(): number {
    return this.problem.status;
  }
}

/** No answer came within the time of the call; `cause` is the last attempt's error. */
export class UnreachableError extends HushstreamError {
  override name = "UnreachableError";
}

/** What answered is no gateway, for instance a proxy in front of it. */
export class UnexpectedAnswerError extends HushstreamError {
  override name = "UnexpectedAnswerError";

  constructor(readonly status: number) {
    super(`expected an answer of a gateway, got something else with status ${status}`);
  }
}

/** Whether the answer to one request of a batch is a problem. */
export function isProblem(answer: object): answer is Problem {
  return "type" in answer && "code" in answer && "status" in answer;
}
