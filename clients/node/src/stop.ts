/** How a caller leaves a request, whatever it waits for at that time. */

import { scheduler } from "./scheduler.js";

/** Not a promise that is raced each time: such a promise would keep the outcome of each race while the request waits. */
export class Stop {
  #error: Error | undefined;
  #tell: ((error: Error) => void) | undefined;

  /** Why it was stopped. */
  get error(): Error | undefined {
    return this.#error;
  }

  because(error: Error): void {
    this.#error ??= error;
    this.#tell?.(this.#error);
  }

  /** The promise's outcome, or the error that ends the request. */
  unless<T>(promise: Promise<T>): Promise<T> {
    return this.inTime(promise, Number.POSITIVE_INFINITY, () => new Error("never"));
  }

  /** The promise's outcome, the error that ends the request, or `late()` when the time is over. */
  inTime<T>(promise: Promise<T>, at: number, late: () => Error): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const done = () => {
        scheduler.cancel(entry);
        if (this.#tell === leave) this.#tell = undefined;
      };
      const leave = (error: unknown) => {
        done();
        reject(error);
      };
      const entry = at === Number.POSITIVE_INFINITY ? undefined : scheduler.at(at, () => leave(late()));
      this.#tell = leave;
      if (this.#error !== undefined) leave(this.#error);
      promise.then((value) => {
        done();
        resolve(value);
      }, leave);
    });
  }
}

/** The promise's outcome, or `late()` thrown when the time is over. What it becomes later is for its maker to look at. */
export const within = <T>(promise: Promise<T>, at: number, late: () => Error): Promise<T> =>
  new Stop().inTime(promise, at, late);
