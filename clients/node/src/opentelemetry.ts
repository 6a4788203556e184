/** Hooks that record metrics and spans with OpenTelemetry's API (`@opentelemetry/api`), which the program installs. */

import {
  type Attributes,
  type Context,
  context,
  type Histogram,
  type Meter,
  metrics,
  SpanStatusCode,
  trace,
  type Tracer,
} from "@opentelemetry/api";

import type { Hooks } from "./base.js";
import type { Hold } from "./hold.js";

export interface TelemetryOptions {
  /** `redislock.lock.group` is the part of a name before it. Default: no such attribute, since names are unbounded. */
  readonly separator?: string | undefined;
  /** Attributes of everything that is recorded, such as `server.address`. */
  readonly attributes?: Attributes | undefined;
  readonly meter?: Meter | undefined;
  readonly tracer?: Tracer | undefined;
}

/** Bucket bounds in seconds, of waits and of holds. */
const WAITS = [0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 10, 30, 60, 300];
const HOLDS = [0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600];

/** The grant of a hold: its time and its context. */
interface Granted {
  readonly at: number;
  readonly in: Context;
}

type Identity = Pick<Hold, "names" | "owner" | "token">;

/** Metrics of waits, holds and renewals, and a span for each wait and each hold, for the option `hooks` of `Locks`. */
export function telemetry(options: TelemetryOptions = {}): Hooks {
  const { separator, meter = metrics.getMeter("redislock"), tracer = trace.getTracer("redislock") } = options;
  const name = "redislock.client";
  const histogram = (what: string, description: string, explicitBucketBoundaries: number[]) =>
    meter.createHistogram(`${name}.${what}.duration`, { unit: "s", description, advice: { explicitBucketBoundaries } });
  const waits = histogram("wait", "Time from a request to its end", WAITS);
  const holds = histogram("hold", "Time from a grant to its end", HOLDS);
  const waiters = meter.createUpDownCounter(`${name}.waiter.count`, { unit: "{waiter}", description: "Pending requests" });
  const holders = meter.createUpDownCounter(`${name}.hold.count`, { unit: "{hold}", description: "Holds" });
  const failures = meter.createCounter(`${name}.renewal.failures`, { unit: "{renewal}", description: "Failed renewals" });
  const granted = new Map<string, Granted>();

  const about = ([first = ""]: readonly string[], error?: Error): Attributes => ({
    ...options.attributes,
    ...(separator === undefined ? {} : { "redislock.lock.group": first.split(separator)[0] ?? first }),
    ...(error === undefined ? {} : { "error.type": error.name }),
  });

  /** Records a duration and a span, which has failed if its outcome is an error or a loss. */
  function end(what: Histogram, ms: number, parent: Context, attributes: Attributes): void {
    what.record(ms / 1000, attributes);
    const now = Date.now();
    const span = tracer.startSpan(`${name}.${what === waits ? "wait" : "hold"}`, { attributes, startTime: now - ms }, parent);
    if (["error", "lost"].includes(String(attributes["redislock.outcome"]))) span.setStatus({ code: SpanStatusCode.ERROR });
    span.end(now);
  }

  function endWait(names: readonly string[], ms: number, more: Attributes): void {
    waiters.add(-1, about(names));
    end(waits, ms, context.active(), { ...about(names), ...more });
  }

  function endHold({ names, owner, token }: Identity, more: Attributes): void {
    const key = `${token} ${owner}`;
    const known = granted.get(key);
    if (known === undefined) return;
    granted.delete(key);
    holders.add(-1, about(names));
    end(holds, performance.now() - known.at, known.in, { ...about(names), ...more });
  }

  const adopted = ({ names, owner, token }: Identity): void => {
    granted.set(`${token} ${owner}`, { at: performance.now(), in: context.active() });
    holders.add(1, about(names));
  };

  return {
    requested: ({ names }) => waiters.add(1, about(names)),
    granted: (event) => {
      adopted(event);
      endWait(event.names, event.waitedMs, { "redislock.outcome": "granted" });
    },
    adopted: ({ hold }) => adopted(hold),
    detached: ({ hold }) => endHold(hold, { "redislock.outcome": "detached" }),
    timedOut: ({ names, waitedMs }) => endWait(names, waitedMs, { "redislock.outcome": "timeout" }),
    failed: ({ names, waitedMs, error }) => endWait(names, waitedMs, { ...about(names, error), "redislock.outcome": "error" }),
    released: ({ hold }) => endHold(hold, { "redislock.outcome": "released" }),
    lost: ({ hold, error }) => endHold(hold, { "redislock.outcome": "lost", "redislock.loss.reason": error.reason }),
    forgotten: (event) => endHold(event, { "redislock.outcome": "forgotten" }),
    renewalFailed: ({ hold, error }) => failures.add(1, about(hold.names, error)),
  };
}
