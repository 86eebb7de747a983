import type { Problem, ProblemCode } from "./generated.js";

/** The base of every error of this package; an abort by the caller's own signal is passed on unchanged. */
export class HushstreamError extends Error {
  override name = "HushstreamError";
}

/** The gateway refused: its problem document (RFC 9457). */
export class ProblemError extends HushstreamError {
  override name = "ProblemError";

  /**
   * @param problem the document.
   * @param retryAfterSeconds how long to wait before the same request; undefined if it would be refused again.
   */
  constructor(
    readonly problem: Problem,
    readonly retryAfterSeconds: number | undefined,
  ) {
    super(`${problem.code}: ${problem.detail}`);
  }

  /** The code, for programs; its meaning never changes. */
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

/** Something that is not a gateway answered, for instance a proxy in front of it. */
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
