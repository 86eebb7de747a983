import { EdgeError } from "../errors.js";

const SOONEST_MS = 250;

/** The handle of repeated calls of `sync`. */
export interface Repeating {
  /** Call this when something is to do that was not foreseen. */
  readonly isDue: () => void;
  readonly stop: () => void;
}

/**
 * Call `sync` now and whenever something is to do.
 *
 * @param waitMs how long nothing is to do; null if nothing is foreseen.
 * @param everyMs the longest wait between two calls, and the wait after a failure.
 */
export function repeating<Round>(
  sync: () => Promise<Round>,
  waitMs: () => number | null,
  everyMs: number,
  onRound: (round: Round | EdgeError) => void,
): Repeating {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let [running, stopped] = [false, false];
  const after = (wait: number): void => {
    clearTimeout(timer);
    if (!stopped) timer = setTimeout(() => void round(), wait);
  };
  const wait = (): number => Math.min(Math.max(waitMs() ?? everyMs, SOONEST_MS), everyMs);
  const round = async (): Promise<void> => {
    running = true;
    let failed = false;
    try {
      onRound(await sync());
    } catch (error) {
      failed = true;
      onRound(error instanceof EdgeError ? error : new EdgeError(String(error)));
    }
    running = false;
    after(failed ? everyMs : wait());
  };
  void round();
  return {
    isDue: () => void (running || after(wait())),
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
