"""The checker of histories of many servers: each fault, put into a history by hand, must be found."""

from checkers import MANY, Break, Request, faults
from checkers.many import certain_spans, double_holders, token_faults


def acquire(owner, sent, answered, token, lease=1.0, kind="acquire", lock="door", error=""):
    return Request(kind, (lock,), owner, sent, answered, token, error, lease=lease)


def refused(owner, sent, answered, error="NOREPLICAS too few", **more):
    return acquire(owner, sent, answered, None, error=error, **more)


def renew(owner, sent, answered, reply=1, lease=1.0):
    return Request("renew", ("door",), owner, sent, answered, reply, lease=lease)


def release(owner, sent, answered, reply=1):
    return Request("release", ("door",), owner, sent, answered, reply)


def spans(*history):
    """Certain spans without their owners and tokens."""
    return [(span.start, span.end) for span in certain_spans(history)]


def test_a_good_history_has_no_faults():
    history = [
        acquire("alice", 0.0, 0.1, 7),
        renew("alice", 0.5, 0.6),
        release("alice", 1.2, 1.4),
        acquire("bob", 1.1, 1.3, 8, lease=0.5),
        acquire("carol", 1.4, 1.6, 9),
        acquire("carol", 1.4, 1.6, 9, kind="macquire", lock="gate"),
        acquire("dave", 0.2, 0.3, 5, lock="hatch"),
    ]
    assert double_holders(history) == token_faults(history[:1]) == []


def test_two_holders_at_once_are_found():
    # G1
    history = [acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.9, 0.95, 8)]
    assert "two holders" in double_holders(history)[0]
    assert double_holders(history[::-1]) == double_holders(history)


def test_two_holders_are_found_after_a_short_hold_in_between():
    # G1
    history = [
        acquire("alice", 0.0, 0.1, 7, lease=9.0),
        acquire("bob", 0.2, 0.3, 8, lease=0.2),
        acquire("carol", 5.0, 5.1, 9, lease=0.2),
    ]
    assert len(double_holders(history)) == 2


def test_one_token_does_not_make_two_owners_one():
    # G1: two servers may have given out the same
    assert double_holders([acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.2, 0.3, 7)])


def test_a_lock_of_several_is_one_like_any_other():
    # G1
    history = [acquire("alice", 0.0, 0.1, 7, kind="macquire"), acquire("bob", 0.2, 0.3, 8)]
    assert "two holders" in double_holders(history)[0]


def test_a_holder_alongside_a_renewed_one_is_found():
    # G1
    history = [acquire("alice", 0.0, 0.1, 7, lease=0.5), renew("alice", 0.4, 0.5), acquire("bob", 1.2, 1.3, 8)]
    assert "two holders" in double_holders(history)[0]


def test_a_span_is_counted_from_the_reply_and_from_the_request():
    assert spans(acquire("alice", 0.25, 0.5, 7)) == [(0.5, 1.25)]
    assert spans(acquire("alice", 0.25, 1.5, 7)) == [], "it was over when the reply came"
    assert spans(acquire("alice", 0.0, 0.25, None)) == []


def test_a_late_renewal_says_nothing_of_the_time_before():
    history = [acquire("alice", 0.0, 0.25, 7, lease=0.5), renew("alice", 0.75, 1.0)]
    assert spans(*history) == [(0.25, 0.5), (1.0, 1.75)]
    assert spans(history[0], renew("alice", 0.75, 1.0, reply=0)) == [(0.25, 0.5)]


def test_a_renewal_may_shorten_the_lease_whatever_the_reply():
    for reply in (0, None):
        assert spans(acquire("alice", 0.0, 0.25, 7), renew("alice", 0.25, 0.5, reply, lease=0.5)) == [(0.25, 0.75)]


def test_a_release_ends_the_hold_when_it_is_sent_whatever_the_reply():
    for reply in (0, 1, None):
        history = [acquire("alice", 0.0, 0.25, 7), renew("alice", 0.25, 0.5), release("alice", 0.75, 2.0, reply)]
        assert spans(*history) == [(0.25, 0.75), (0.5, 0.75)]


def test_as_many_as_the_limit_says_are_no_fault_and_one_more_is():
    # G1
    history = [acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.2, 0.3, 8), acquire("bob", 0.4, 0.5, 8)]
    assert double_holders(history, limits={"door": 2}) == []
    late, early = acquire("carol", 1.4, 1.5, 9), acquire("carol", 0.5, 0.6, 9)
    assert double_holders([*history, late], limits={"door": 2}) == []
    assert "more than 2 holders" in double_holders([*history, early], limits={"door": 2})[0]
    assert double_holders(history, limits={"gate": 2}), "another lock"


def test_a_hold_broken_on_purpose_has_no_claim_from_then_on():
    history = [acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.6, 0.7, 8)]
    assert double_holders(history, [Break("door", 0.4, 0.5)]) == []
    assert double_holders(history, [Break(None, 0.4, 0.5)]) == [], "all locks"
    assert double_holders(history, [Break("gate", 0.4, 0.5)]), "another lock"
    assert double_holders(history, [Break("door", 0.75, 0.9)]), "both held it before"


def test_a_grant_that_may_be_older_than_a_break_has_no_claim_either():
    history = [acquire("alice", 0.4, 0.6, 7), acquire("bob", 0.7, 0.8, 8)]
    assert double_holders(history, [Break("door", 0.3, 0.5)]) == []
    assert double_holders(history, [Break("door", 0.2, 0.3)]), "it was granted after the break"


def test_tokens_that_go_down_are_found():
    # G4: of one lock, and of two
    for lock in ("door", "gate"):
        history = [acquire("alice", 0.0, 0.1, 8), acquire("bob", 2.0, 2.1, 7, lock=lock)]
        assert "token went down" in token_faults(history)[0]
        assert token_faults([history[0], history[1]._replace(sent=0.05)]) == []
    history = [acquire("alice", 0.0, 0.1, 8, kind="macquire"), acquire("bob", 2.0, 2.1, 7, kind="macquire")]
    assert len(token_faults(history)) == 1


def test_one_token_of_two_owners_is_found():
    # G4
    history = [acquire("alice", 0.0, 0.1, 7), acquire("bob", 2.0, 2.1, 7, lock="gate")]
    assert "one token" in token_faults(history)[0]
    assert token_faults([history[0], acquire("alice", 0.0, 0.1, 7, kind="macquire", lock="gate")]) == []


def test_a_hold_that_began_without_an_answer_is_as_old_as_the_request_for_it():
    # G4: the owner asks again, and receives the token from then; another lock was granted in between
    first, other, again = refused("bob", 0.0, 0.3), acquire("alice", 0.5, 0.6, 8, lock="gate"), acquire("bob", 1.0, 1.1, 7)
    for error in ("NOREPLICAS too few", "UNBLOCKED this server is a replica now", "UNANSWERED", "LOST"):
        assert token_faults([first._replace(error=error), other, again]) == []
    # Not one that was requested later, by another owner, for another lock, or that began nothing.
    for others in (
        first._replace(sent=0.7), first._replace(owner="carol"), first._replace(keys=("hatch",)),
        first._replace(error="QUARANTINE 5"), first._replace(error=""),
    ):  # fmt: skip
        assert "token went down" in token_faults([others, other, again])[0]
    # Nor one that the owner received since.
    told = acquire("bob", 0.31, 0.35, 6)
    assert "token went down" in token_faults([first, told, other, again])[0]


def test_tokens_of_one_lock_rise_by_the_times_of_their_replies():
    # G4: the assumption of a storage that compares tokens; not of a semaphore, where both hold
    history = [refused("bob", 0.0, 0.3), acquire("alice", 0.5, 0.6, 8), acquire("bob", 1.7, 1.8, 7)]
    assert "token went down" in token_faults(history)[0]
    assert token_faults(history, {"door": 2}) == []


# All together


def test_each_of_several_locks_is_judged():
    # G1
    both = Request("macquire", ("gate", "door"), "bob", 0.2, 0.3, 8, lease=1.0)
    assert "two holders" in faults([acquire("alice", 0.0, 0.1, 7), both], MANY)[0]
    assert faults([acquire("alice", 0.0, 0.1, 7, lock="hatch"), both], MANY) == []


def test_what_is_known_of_the_load_is_heeded():
    # G1, G4
    history = [acquire("alice", 0.0, 0.1, 7), acquire("bob", 0.6, 0.7, 8)]
    assert len(faults(history, MANY)) == 1
    assert faults(history, MANY, breaks=[Break("door", 0.4, 0.5)]) == faults(history, MANY, limits={"door": 2}) == []
    assert "token went down" in faults([history[0], acquire("bob", 2.0, 2.1, 6)], MANY)[0]


def test_a_lease_that_ended_early_is_a_fault_of_a_server_that_forgets_nothing():
    # G2
    for told in (renew("alice", 0.2, 0.3, 0), release("alice", 0.2, 0.3, 0)):
        history = [acquire("alice", 0.0, 0.1, 7, kind="macquire"), told]
        assert faults(history, MANY) == []
        assert "ended early" in faults(history, MANY, forgets_nothing=True)[0]
        assert faults(history, MANY, forgets_nothing=True, breaks=[Break("door", 0.15, 0.25)]) == []
    late = [acquire("alice", 0.0, 0.1, 7), renew("alice", 1.05, 1.1, 0)]
    assert faults(late, MANY, forgets_nothing=True) == []
