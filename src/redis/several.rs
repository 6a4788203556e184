//! LOCK.MACQUIRE: several keys in one step.

use std::ffi::c_int;

use super::acquiring::{self, bind_to, reply_acquired, wait_until};
use super::api::{Ctx, Key, Str, place_of};
use super::gate::Gate;
use super::handlers::{internal_error, invalid};
use super::state::{self, lock_type};
use super::{blocking, carry_out, clock, confirm, legacy, server, settings};
use crate::command::acquire::Acquire;
use crate::command::args::Bounds;
use crate::command::{error, macquire};
use crate::lock::effect::{Effects, Found};
use crate::lock::table::{Acquired, Ask, Granted, Spot, Steps, Table};

/// One step at several keys of the selected database, which all stay open until all are changed.
pub(super) fn at_all<R>(
    ctx: &Ctx,
    names: &[Str<'_>],
    is_decided_here: bool,
    step: impl FnOnce(&mut Table, &[Spot<'_>], &mut [Effects]) -> Steps<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let keys: Vec<Key<'_>> = names.iter().map(|&name| Key::open_write(ctx, name)).collect();
    let spots: Vec<Spot<'_>> = names
        .iter()
        .zip(&keys)
        .map(|(&name, key)| {
            let found = key.found(lock_type());
            let found = if is_decided_here { legacy::look(key, found, None) } else { found };
            Spot { place: place_of(ctx, name), found }
        })
        .collect();
    let mut effects: Vec<Effects> = names.iter().map(|_| Effects::default()).collect();
    let (reply, steps) = state::with(|state| {
        let (reply, steps) = step(&mut state.table, &spots, &mut effects);
        for (step, spot) in steps.iter().zip(&spots) {
            state.settle(step.change, spot.found);
        }
        (reply, steps)
    })?;
    before(&reply);
    let found: Vec<Found> = spots.iter().map(|spot| spot.found).collect();
    for ((key, found), step) in keys.into_iter().zip(found).zip(&steps) {
        carry_out::change(key, found, step.change);
    }
    for ((&name, step), fx) in names.iter().zip(&steps).zip(effects) {
        carry_out::tell(ctx, name, step.record, fx);
    }
    Some(reply)
}

/// Tells the server which of the arguments are keys; nothing if they make no sense.
pub(super) fn tell_keys(ctx: &Ctx, args: &[Str<'_>]) -> c_int {
    let count = macquire::keys(args).map_or(0, <[_]>::len);
    for number in 0..count {
        // Behind the command and their count.
        ctx.tell_key_at(number + 2);
    }
    0
}

pub(super) fn asked_to_acquire(ctx: &Ctx, args: &[Str<'_>]) -> c_int {
    let (names, request) = match macquire::parse(args, &settings::bounds()) {
        Ok(parsed) => parsed,
        Err(error) => return invalid(ctx, &error),
    };
    if acquiring::refuses_for_eviction(ctx) {
        return ctx.reply_error(error::MAY_EVICT);
    }
    if settings::confirms()
        && let Some(reason) = confirm::refusal_of_grant(ctx, request.tie)
    {
        return ctx.reply_error(reason);
    }
    let minted = uuid::Uuid::new_v4().hyphenated().to_string();
    let owner = request.owner.unwrap_or(minted.as_bytes());
    let client = ctx.client();
    let now = clock::now();
    let mut ask = Ask {
        owner,
        owner_is_minted: request.owner.is_none(),
        lease_ms: request.lease_ms,
        mode: request.mode,
        is_reentrant: false,
        tie: request.tie,
        wait: request.wait.and_then(|wait| wait_until(ctx, now.boot, client, wait)),
        client,
        bind_to: None,
        must_be_named: request.owner.is_none() || server::is_cluster(),
        cannot_confirm: confirm::is_impossible(),
    };
    let mut gate = Gate::of_command(ctx);
    let mut is_parked = false;
    let reply = at_all(
        ctx,
        names,
        true,
        |table, spots, fx| {
            ask.bind_to = bind_to(ctx, client, table.may_have_ties());
            table.acquire_many(now, spots, &ask, &mut |who| gate.admit(who), fx)
        },
        |reply| {
            if let Acquired::Waiting(waiter) = *reply {
                is_parked = blocking::park(ctx, waiter);
            }
        },
    );
    if settings::confirms()
        && let Some(Acquired::Granted(token)) = reply
    {
        return acquiring::hold_back(
            ctx,
            names,
            token,
            request.owner.is_none().then_some(owner),
            request.lease_ms,
        );
    }
    reply_acquired(ctx, reply, request.owner.is_none().then_some(owner), is_parked)
}

pub(super) fn told_to_acquire(ctx: &Ctx, args: &[Str<'_>]) -> c_int {
    let Ok((names, Acquire { owner: Some(owner), lease_ms, mode, is_reentrant, tie, .. })) =
        macquire::parse(args, &Bounds::WIDEST)
    else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    let now = clock::now();
    let granted = Granted { owner, lease_ms, mode, is_reentrant, tie };
    let step = |table: &mut Table, spots: &[Spot<'_>], fx: &mut [Effects]| {
        ((), table.apply_acquire_many(now.boot, spots, &granted, fx))
    };
    match at_all(ctx, names, false, step, |()| ()) {
        Some(()) => ctx.reply_ok(),
        None => internal_error(ctx),
    }
}
