"""The faults that a client can have, one at a time: the kit must fail each at the case meant for it.

REDISLOCK_BREAK=NAME switches one on. The reference calls `is_broken(NAME)` at the place of the fault.
"""

import os

#: By name: the point, and the case that must fail.
BREAKS = {
    "new-owner-for-each-try": (1, "a-reply-is-lost-after-the-grant"),
    "takes-the-owner-that-means-anybody": (1, "the-owner-that-means-anybody-is-refused"),
    "deadline-from-the-reply": (2, "a-slow-reply-shortens-the-remaining-time"),
    "a-late-grant-is-a-hold": (2, "a-grant-that-is-answered-too-late-is-no-hold"),
    "a-late-grant-is-a-loss": (2, "a-grant-that-is-answered-too-late-is-asked-for-again"),
    "counts-from-before-the-wait": (2, "a-grant-after-a-wait-is-counted-from-a-renewal"),
    "no-deadline": (2, "holders-learn-of-their-loss-before-a-stopped-server-ends-the-lease"),
    "no-renewal": (3, "a-lock-is-held-far-beyond-its-lease"),
    "no-longest-hold": (3, "renewal-stops-at-the-longest-hold"),
    "no-push": (4, "a-loss-is-told-by-push"),
    "told-twice": (4, "a-loss-is-told-once"),
    "a-replica-tells-of-a-loss": (4, "a-replica-cannot-tell-of-a-loss"),
    "refused-release-hides-the-loss": (4, "a-lock-that-was-written-over-ends-the-block"),
    "own-release-is-a-loss": (4, "what-a-holder-does-itself-is-no-loss"),
    "waits-in-the-pool": (5, "waiters-do-not-starve-the-pool"),
    "wait-begins-anew": (5, "a-wait-whose-connection-is-cut-ends-when-it-should"),
    "not-ephemeral": (5, "a-client-that-dies-just-after-its-grant-leaves-nothing"),
    "stays-ephemeral": (5, "a-hold-outlives-the-connection-that-waited-for-it"),
    "last-come-first": (5, "a-thousand-tasks-wait-over-few-connections"),
    "in-vain-and-in-the-queue": (5, "a-wait-in-vain-keeps-no-position"),
    "a-wait-is-not-probed": (5, "a-connection-that-goes-silent-ends-no-wait"),
    "loses-patience-while-it-waits": (5, "a-wait-without-an-end-has-none"),
    "cancelled-and-forgotten": (6, "cancelled-with-a-grant-on-its-way"),
    "refused-and-all-is-over": (6, "a-refused-request-ends-nothing-that-its-owner-holds"),
    "release-hides-the-body": (6, "a-release-that-fails-hides-nothing"),
    "closes-and-keeps": (6, "the-end-of-a-program-gives-up-all-locks"),
    "closes-one-after-the-other": (6, "a-close-with-many-holds-and-a-stopped-server"),
    "gives-away-what-it-lost": (6, "a-hold-that-is-not-renewed-is-not-given-away"),
    "waits-for-a-closed-client": (6, "the-client-is-quit-before-the-locks"),
    "one-hold-for-an-object": (6, "blocks-of-one-lock-object-give-up-their-own-holds"),
    "one-owner-for-an-object": (1, "one-lock-object-is-not-had-twice"),
    "a-leader-that-fails-leads-on": (6, "a-leader-whose-work-fails-gives-the-lock-up"),
    "a-leader-that-fails-says-nothing": (6, "a-leader-whose-work-fails-gives-the-lock-up"),
    "a-leader-that-lost-stands-no-more": (4, "a-leader-whose-work-ends-by-the-loss-stands-again"),
    "a-loss-is-a-failure-of-the-work": (4, "a-leader-whose-work-blocks-until-the-loss-stands-again"),
    "counts-a-server-twice": (7, "one-server-by-two-addresses-is-no-majority"),
    "equal-tokens-are-one-server": (7, "two-servers-that-gave-equal-tokens-are-two"),
    "old-primary": (7, "a-planned-failover"),
    "stays-with-a-server-that-answers": (7, "an-address-that-moves-is-followed-by-new-locks"),
    "a-new-connection-for-each-try": (7, "an-address-that-leads-to-a-replica"),
    "first-error-ends-the-wait": (7, "a-wait-whose-connection-is-cut-ends-with-the-lock"),
    "child-releases": (8, "a-child-has-no-holds"),
    "waits-without-a-server": (8, "no-server-answers"),
    "tries-for-longer-than-it-may": (8, "a-server-that-is-silent"),
    "a-lost-server-is-another-holder": (8, "a-server-that-goes-away-during-a-wait-is-no-other-holder"),
    "a-login-that-fails-comes-out": (8, "a-login-that-fails-from-now-on"),
    "one-kind-of-error": (8, "a-request-of-another-kind-is-refused"),
    "unconfirmed-is-held": (8, "replicas-that-stand-still-confirm-nothing"),
    "unconfirmed-is-asked-again": (8, "replicas-that-stand-still-confirm-nothing"),
    "quarantine-is-a-timeout": (8, "the-server-is-in-quarantine"),
    "learns-no-limit": (8, "requests-that-wait-longer-than-the-server-allows-are-all-granted"),
    "too-few-are-a-timeout": (8, "an-attempt-without-a-majority-leaves-nothing"),
    "fails-to-renew-without-a-word": (9, "a-renewal-that-fails-is-logged"),
    "waits-without-a-word": (9, "a-wait-for-long-is-logged"),
    "a-loss-without-a-cause": (9, "a-loss-is-told-with-its-cause"),
    "reconnects-without-a-word": (9, "a-reconnect-is-logged"),
    "no-label": (1, "an-owner-begins-with-the-label"),
    "a-prefix-for-the-first-name": (1, "a-prefix-stands-before-each-name"),
    "a-refusal-is-nothing": (5, "a-try-gets-nothing-where-another-holds-the-lock"),
    "readers-of-several-are-writers": (5, "readers-of-several-locks-hold-them-together"),
    "pings-a-server-that-grants-nothing": (8, "a-ping-fails-where-no-lock-can-be-acquired"),
    "pings-without-a-bound": (7, "a-ping-fails-while-the-server-is-away"),
    "info-without-waiters": (5, "info-names-holders-and-waiters"),
    "a-least-hold-is-released": (6, "a-lock-is-free-after-its-least-hold"),
    "a-least-hold-without-a-server": (3, "a-lock-stays-taken-for-its-least-hold"),
    "a-least-hold-for-the-whole-lease": (6, "a-lock-is-free-after-its-least-hold"),
    "waits-for-itself": (8, "a-task-that-waits-for-itself-is-refused"),
    "a-detached-hold-is-released": (6, "a-hold-goes-on-in-another-process"),
    "adopts-what-is-over": (6, "a-hold-goes-on-in-another-process"),
    "a-ticket-with-the-prefix": (6, "a-ticket-is-the-same-in-each-language"),
    "detaches-in-doubt": (6, "nothing-is-handed-on-while-a-renewal-may-come-late"),
    "closes-under-a-body": (6, "a-close-waits-for-blocks-that-work-under-a-lock"),
    "counts-nothing": (9, "hooks-see-every-event"),
    "keeps-a-kilobyte": (9, "ten-thousand-locks-leave-no-trace"),
}

_CHOSEN = os.environ.get("REDISLOCK_BREAK", "")
assert not _CHOSEN or _CHOSEN in BREAKS, f"no such break: {_CHOSEN}"


def is_broken(name):
    """Returns whether this fault is switched on."""
    assert name in BREAKS, name
    return name == _CHOSEN
