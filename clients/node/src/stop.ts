/** Lets a caller leave a request, whatever the request waits for at that time. */

import { scheduler } from "./scheduler.js";

/**
 * It is not a promise that each wait races: such a promise would retain the outcome of each race while the request
 * waits.
 */
export class Stop {
  #error: Error | undefined;
  #tell: ((error: Error) => void) | undefined;

  /** The error with which it was stopped. */
  get error(): Error | undefined {
    return this.#error;
  }

  because(error: Error): void {
    this.#error ??= error;
    this.#tell?.(this.#error);
  }

  /** Returns the promise's outcome, or throws the error that ends the request. */
  unless<T>(promise: Promise<T>): Promise<T> {
    return this.inTime(promise, Number.POSITIVE_INFINITY, () => new Error("never"));
  }

  /**
   * Returns the promise's outcome. Throws the error that ends the request. When the time is up, throws the error of
   * `late()`, or returns the outcome of its promise.
   */
  inTime<T>(promise: Promise<T>, at: number, late: () => Error | Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const done = () => {
        scheduler.cancel(entry);
        if (this.#tell === leave) this.#tell = undefined;
      };
      const leave = (error: unknown) => {
        done();
        reject(error);
      };
      const timeUp = () => {
        done();
        const outcome = late();
        if (outcome instanceof Error) reject(outcome);
        else resolve(outcome);
      };
      const entry = at === Number.POSITIVE_INFINITY ? undefined : scheduler.at(at, timeUp);
      this.#tell = leave;
      if (this.#error !== undefined) leave(this.#error);
      promise.then((value) => {
        done();
        resolve(value);
      }, leave);
    });
  }
}

/**
 * Returns the promise's outcome, or throws `late()` when the time is up. A later outcome is left to the promise's
 * maker.
 */
export const within = <T>(promise: Promise<T>, at: number, late: () => Error): Promise<T> =>
  new Stop().inTime(promise, at, late);
