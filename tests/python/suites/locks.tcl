# Put before the server's own fuzzer of payloads: locks among the keys whose payloads it damages, and what
# clients do with them as the traffic on what such a payload brought.

# Locks of all kinds. Their leases are longer than any run.
proc generate_locks {} {
    set long [string repeat x 256]
    set lease {PX 3600000}
    r lock.acquire lock:plain alice {*}$lease
    r lock.acquire lock:long $long {*}$lease
    r lock.acquire lock:kept alice {*}$lease KEEPALIVE EPHEMERAL 3599999
    for {set j 0} {$j < 3} {incr j} {
        r lock.acquire lock:counted alice {*}$lease REENTRANT
        r lock.acquire lock:shared reader$j {*}$lease SHARED
        r lock.acquire lock:limited worker$j {*}$lease LIMIT 4
        r lock.acquire lock:mixed reader$j {*}$lease SHARED KEEPALIVE
    }
    for {set j 0} {$j < 200} {incr j} {
        r lock.acquire lock:crowd reader$j {*}$lease SHARED
    }
    r lock.macquire 2 lock:one lock:two bob {*}$lease
    # With those who wait for them.
    for {set j 0} {$j < 5} {incr j} {
        r lock.acquire lock:queued alice {*}$lease
        r lock.acquire lock:queued owner$j {*}$lease QUEUE 3600000
        r lock.acquire lock:awaited alice {*}$lease
        lappend ::waiting [lock_waiter lock:awaited waiter$j {*}$lease BLOCK 0]
    }
    if {$::only_locks} { return -code return }
}

# A client that waits for a lock.
proc lock_waiter {args} {
    if {[info commands valkey_deferring_client] ne ""} {
        set client [valkey_deferring_client]
    } else {
        set client [redis_deferring_client]
    }
    $client lock.acquire {*}$args
    $client flush
    return $client
}

proc one_of {list} {
    lindex $list [expr {int(rand() * [llength $list])}]
}

# A request that makes sense, if the payload left the lock as it was.
proc lock_command {key} {
    set owner [one_of {alice bob zoe reader0 worker0 owner0 *}]
    set lease [one_of {{PX 1} {PX 50} {PX 3600000} {EX 1}}]
    set kind [one_of {{} SHARED {LIMIT 1} {LIMIT 4} REENTRANT KEEPALIVE {EPHEMERAL 0} {QUEUE 5} {BLOCK 1}}]
    set token [one_of [list 1 [randomValue] [expr {[clock microseconds]}]]]
    one_of [list \
        [list lock.acquire $key $owner {*}$lease {*}$kind] \
        [list lock.acquire $key $owner {*}$lease {*}$kind] \
        [list lock.macquire 1 $key $owner {*}$lease] \
        [list lock.release $key $owner] \
        [list lock.release $key $owner TOKEN $token] \
        [list lock.renew $key $owner {*}$lease] \
        [list lock.renew $key $owner {*}$lease RAISE $token] \
        [list lock.info $key FULL] \
        [list lock.fence $key $token] \
        [list lock.heldby $owner] \
        [list lock.exec $key $token PING] \
        [list debug digest-value $key] \
        [list memory usage $key] \
        [list object freq $key] \
        [list dump $key] \
        [list expire $key 100] \
        [list persist $key] \
        [list touch $key]]
}

# Any of the module's commands with arguments by chance, as the server's fuzzer makes those of its types.
proc lock_nonsense {key} {
    set command [one_of {lock.acquire lock.macquire lock.release lock.renew lock.info lock.fence lock.heldby
        lock.exec lock.apply lock.tick}]
    set sent [list $command]
    set length [expr {1 + int(rand() * 5)}]
    for {set j 0} {$j < $length} {incr j} {
        lappend sent [expr {rand() < 0.4 ? $key : [randomValue]}]
    }
    return $sent
}

# What one client does with a lock while two wait for it, who are gone again in the end.
proc lock_traffic {key} {
    set blocked [s blocked_clients]
    set waiters {}
    foreach kind {{} SHARED} {
        lappend waiters [lock_waiter $key waiter$kind PX 20 {*}$kind BLOCK 0]
    }
    set sent {}
    for {set j 0} {$j < 60} {incr j} {
        if {rand() < 0.7} { set command [lock_command $key] } else { set command [lock_nonsense $key] }
        lappend sent $command
        catch {r {*}$command}
    }
    r lock.info $key FULL ; # an answer, or the server is gone
    foreach waiter $waiters { $waiter close }
    wait_for_condition 500 10 {[s blocked_clients] <= $blocked} else { fail "a client that is gone waits" }
    return $sent
}

set ::waiting {}

rename generate_fuzzy_traffic_on_key traffic_on_key
proc generate_fuzzy_traffic_on_key {key args} {
    if {![string match _lock:* $key]} { return [traffic_on_key $key {*}$args] }
    if {[catch { lock_traffic $key } sent]} {
        puts "A lock ended the server: $sent"
        error $sent
    }
    puts "Lock restored"
    return $sent
}

proc ended_by_itself {key now before} {
    if {![string match lock:* $key]} { assert_morethan $now $before }
}
