package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class LinesTest {
    private static Lines.Place asked(Lines lines, long number, boolean isNamed) {
        var place = lines.join("k", number, isNamed);
        place.sends();
        place.asked(100 + number, 1);
        return place;
    }

    @Test
    void namedOwnersKeepNobodyFromTheServersQueue() {
        var lines = new Lines(new Engine(), 1);
        for (int number = 0; number < 3; number++) {
            asked(lines, number, true);
        }
        var first = lines.join("k", 10, false);
        var second = lines.join("k", 11, false);
        assertEquals(Lines.May.ASK, first.mayAsk());
        assertEquals(Lines.May.NOT_YET, second.mayAsk());
        first.leave();
        assertTrue(second.called);
        assertEquals(Lines.May.ASK, second.mayAsk());
    }

    @Test
    void aWaiterThatTheServerQueuesMayAskAgainThoughAnEarlierCallJoinsLate() {
        var lines = new Lines(new Engine(), 2);
        var second = lines.join("k", 12, false);
        var third = lines.join("k", 13, false);
        second.sends();
        third.sends();
        var first = lines.join("k", 11, false);
        first.sends();
        second.asked(100, 1);
        first.asked(101, 1);
        third.asked(102, 1);
        assertEquals(Lines.May.ASK, third.mayAsk());
    }

    @Test
    void aWaiterThatHasToAskAgainIsCalledAfterOneThatHasNot() {
        var lines = new Lines(new Engine(), 8);
        var one = asked(lines, 1, false);
        var two = asked(lines, 2, false);
        var three = asked(lines, 3, false);
        two.asked(200, 2); // by itself, as its place would lapse
        three.clear();
        assertEquals(Lines.May.AFTER_OTHERS, three.mayAsk());
        one.asked(201, 2);
        assertTrue(three.called);
        assertEquals(Lines.May.ASK, three.mayAsk());
    }

    @Test
    void aNewWaiterIsCalledAfterOneThatAskedOverTheNewConnectionFirst() {
        var lines = new Lines(new Engine(), 8);
        var old = asked(lines, 1, false);
        var first = lines.join("k", 2, false);
        first.sends();
        first.asked(200, 2);
        var second = lines.join("k", 3, false);
        assertEquals(Lines.May.AFTER_OTHERS, second.mayAsk());
        old.asked(201, 2);
        assertTrue(second.called);
        assertEquals(Lines.May.ASK, second.mayAsk());
    }

    @Test
    void aNamedOwnerIsCalledWhenThoseAheadHaveAskedAgain() {
        var lines = new Lines(new Engine(), 2);
        var one = asked(lines, 1, false);
        var two = asked(lines, 2, false);
        one.asked(200, 2);
        var named = lines.join("k", 3, true);
        assertEquals(Lines.May.AFTER_OTHERS, named.mayAsk());
        two.asked(201, 2);
        assertTrue(named.called);
        assertEquals(Lines.May.ASK, named.mayAsk());
    }
}
