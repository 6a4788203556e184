/** Releases what a server may grant, or has granted, to an attempt whose caller has left. */

import { now, pauseBefore } from "./clock.js";
import { type Request, releaseCommand } from "./commands.js";
import { mayPass, meaningOf } from "./errors.js";
import type { Taken } from "./loose.js";
import type { Command, Route } from "./route.js";
import { pause } from "./scheduler.js";

/**
 * Sends a release behind requests that may be in flight over the client, and over another route if the client is unfit.
 * For an owner that the program has named it uses only one of the two: that owner may ask again meanwhile.
 */
function release(route: Route, name: string, command: Command, isNamed: boolean, isBound: boolean): Promise<unknown> {
  if (route.isFit || isBound) return route.over(name, command);
  const around = route.around(name, command);
  return isNamed || route.isClosed ? around : Promise.any([around, route.over(name, command)]);
}

/**
 * Releases each name until that is answered or the lease would have expired, except names that are acquired again
 * meanwhile. Without a token it ends the wait and any hold of the owner. `isBound`: it must not overtake requests that
 * are in flight over the client.
 */
export function givingUp(
  route: Route,
  { keys, owner, lease, isNamed }: Request,
  { token, taken, isBound }: { token: number | undefined; taken: Taken; isBound: boolean },
): Promise<unknown>[] {
  const until = now() + lease;
  return keys.map(async (name) => {
    const command = () => (taken.has(name) ? undefined : releaseCommand(name, owner, token));
    for (let attempt = 0; !taken.has(name); attempt++) {
      try {
        return await release(route, name, command, isNamed, isBound);
      } catch (error) {
        if (!mayPass(meaningOf(error)) || now() >= until || route.isClosed) return undefined;
        await pause(pauseBefore(attempt));
      }
    }
    return undefined;
  });
}
