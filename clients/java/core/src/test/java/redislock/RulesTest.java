package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class RulesTest {
    private static Object read(String text) throws IOException {
        return new Resp(new ByteArrayInputStream(text.getBytes(StandardCharsets.UTF_8))).read();
    }

    @Test
    void repliesAreReadInAllTheirKinds() throws IOException {
        assertEquals("OK", read("+OK\r\n"));
        assertEquals(42L, read(":42\r\n"));
        assertNull(read("_\r\n"));
        assertNull(read("$-1\r\n"));
        assertEquals("ä\r\n", read("$4\r\nä\r\n\r\n"));
        assertEquals(new Resp.Refusal("ERR no"), read("-ERR no\r\n"));
        assertEquals(new Resp.Refusal("ERR long"), read("!8\r\nERR long\r\n"));
        assertEquals(List.of(1L, "a", true), read("*3\r\n:1\r\n$1\r\na\r\n#t\r\n"));
        assertEquals(Map.of("k", List.of(2L)), read("%1\r\n+k\r\n~1\r\n:2\r\n"));
        assertEquals(new Resp.Push(List.of("invalidate", List.of("k"))), read(">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n"));
        assertEquals(7L, read("|1\r\n+ttl\r\n:3\r\n:7\r\n"));
    }

    @Test
    void peersThatSpeakNoRespAreToldApart() {
        for (String text : List.of("HTTP/1.1 400\r\n", "$99999999999\r\n", "$x\r\n", "*1048577\r\n", "\r\n",
                "*1\r\n".repeat(20) + ":1\r\n", "+" + "x".repeat(70_000) + "\r\n")) {
            var thrown = assertThrows(IOException.class, () -> read(text));
            assertTrue(thrown.getMessage().contains("does not speak RESP3"), thrown.getMessage());
        }
        assertThrows(IOException.class, () -> read("$5\r\nab"));
    }

    @Test
    void redirectionsAndRefusalsAreJudged() {
        assertEquals(new Rules.Verdict(Rules.Next.MOVED, 3999, "127.0.0.1:6381"), Rules.judge("MOVED 3999 127.0.0.1:6381"));
        assertEquals(Rules.Next.ASKING, Rules.judge("ASK 3999 127.0.0.1:6381").next());
        assertEquals(Rules.Next.ELSEWHERE, Rules.judge("READONLY You can't write").next());
        assertEquals(Rules.Next.AGAIN, Rules.judge("LOADING Redis is loading").next());
        for (String text : List.of("", "ERR no", "MOVED", "MOVED x 127.0.0.1:1", "MOVED 99999 127.0.0.1:1", "MOVED 1 nowhere")) {
            assertEquals(Rules.Next.FAIL, Rules.judge(text).next(), text);
        }
        assertEquals(12182, Rules.slot("foo"));
        assertEquals(Rules.slot("user1000"), Rules.slot("{user1000}.following"));
        assertEquals(5 * Rules.SECOND, Rules.longestWait("ERR QUEUE must be an integer from 1 to 5000 (milliseconds)"));
        assertEquals(-1, Rules.longestWait("ERR no"));
    }

    @Test
    void errorCodesAreWhatTheTableSays() throws IOException {
        var rows = Files.readAllLines(Path.of("../../../docs/reference/errors.md")).stream().filter(line -> line.startsWith("| `"))
                .toList();
        assertTrue(rows.size() >= 10, rows.toString());
        for (var row : rows) {
            var cells = row.substring(2).replace("`", "").split(" \\| ");
            var text = cells[0] + " " + cells[1];
            var kind = cells[8].equals("-") ? "ServerRefusedException" : cells[8];
            assertEquals(kind.equals("again"), Rules.judge(text).next() != Rules.Next.FAIL, row);
            if (!kind.equals("again")) {
                assertEquals(kind, Problem.of(text).exception().getClass().getSimpleName(), row);
                assertTrue(Problem.of(text).isRefusal(), row);
            }
        }
    }

    @Test
    void anUnknownCodeIsAGeneralRefusalWithTheText() {
        var text = "NEWCODE that no client knows";
        assertEquals(Rules.Next.FAIL, Rules.judge(text).next());
        var exception = Problem.of(text).exception();
        assertEquals(ServerRefusedException.class, exception.getClass());
        assertEquals(text, exception.getMessage());
    }

    @Test
    void lengthsOfWordsAreThoseOfTheirBytes() {
        assertEquals("*2\r\n$4\r\nPING\r\n$2\r\nä\r\n", new String(Resp.command(List.of("PING", "ä")), StandardCharsets.UTF_8));
    }

    @Test
    void clockCountsTheTimeThatTheMachineSlept() {
        var monotonic = new AtomicLong(5_000_000_000L);
        var slept = new AtomicLong();
        var clock = new Clock(monotonic::get, () -> monotonic.get() + slept.get(),
                () -> (monotonic.get() + slept.get()) / 10_000_000 * 10_000_000);
        long before = clock.read();
        monotonic.addAndGet(Duration.ofSeconds(1).toNanos());
        assertEquals(Duration.ofSeconds(1).toNanos(), clock.read() - before);
        slept.addAndGet(Duration.ofSeconds(60).toNanos());
        monotonic.addAndGet(Duration.ofMillis(5).toNanos());
        long after = clock.read() - before;
        assertTrue(after >= Duration.ofMillis(61_005).toNanos(), "a sleep is counted in full: " + after);
        assertTrue(after < Duration.ofMillis(61_100).toNanos(), "and not for longer: " + after);
    }

    @Test
    void leasesAreTrustedForLessThanTheyLast() {
        assertEquals(Duration.ofSeconds(30).toNanos() * 99 / 100 - 2_000_000, Rules.sure(Rules.DEFAULT_LEASE));
        for (int time = 0; time < 100; time++) {
            long renewal = Rules.renewal(Rules.DEFAULT_LEASE);
            assertTrue(renewal <= 10 * Rules.SECOND && renewal >= 9 * Rules.SECOND, "" + renewal);
        }
    }
}
