package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class PingTest extends OneServer {
    private static Door server(String role, String fence) {
        return Door.played(command -> switch (command) {
            case "HELLO" -> "%2\r\n+role\r\n+" + role + "\r\n+modules\r\n*1\r\n%2\r\n+name\r\n+redislock\r\n+ver\r\n:" + (role.equals("master") ? 300 : 200);
            case "LOCK.FENCE" -> fence;
            default -> "+OK";
        });
    }

    @Test
    void pingSaysWhetherLocksCanBeAskedForHere() throws Exception {
        for (var fence : List.of(":0", "-MOVED 77 10.0.0.1:6379")) { // this node has other slots
            try (var door = server("master", fence); var own = Locks.open("redis://127.0.0.1:" + door.port)) {
                assertEquals("0.3.0", own.ping());
            }
        }
        for (var each : Map.of("-LOADING Redis is loading", ConnectionFailedException.class,
                "-NOPERM no permissions to access a key", ServerRefusedException.class,
                "-ERR unknown command 'LOCK.FENCE'", ModuleMissingException.class).entrySet()) {
            try (var door = server("master", each.getKey()); var own = Locks.open("redis://127.0.0.1:" + door.port)) {
                var thrown = assertThrows(each.getValue(), own::ping);
                assertTrue(thrown.getMessage().contains(each.getKey().substring(1)), thrown.getMessage());
            }
        }
    }

    @Test
    void pingOfAReplicaFails() throws Exception {
        try (var own = new Server(); var mine = own.locks()) {
            assertEquals("0.3.0", mine.ping());
            own.command("REPLICAOF", "127.0.0.1", "1");
            var thrown = assertThrows(ConnectionFailedException.class, mine::ping);
            assertTrue(thrown.getMessage().contains("READONLY"), thrown.getMessage());
            assertTrue(thrown.getMessage().contains(own.address() + " is a replica"), thrown.getMessage());
        }
    }

    @Test
    void pingFindsThePrimaryAsAnAcquireDoes() throws IOException, InterruptedException {
        try (var old = server("replica", ":0"); var primary = server("master", ":0");
                var sentinel = Door.sentinel(old.port, primary.port);
                var own = Locks.builder().sentinel("main", List.of("127.0.0.1:" + sentinel.port)).open()) {
            assertEquals("0.3.0", own.ping());
        }
    }

    @Test
    void aPlainConnectionToAPortForTlsSaysWhatMayBeWrong() throws Exception {
        try (var door = Door.played(command -> "\u0015\u0003\u0003")) { // an alert
            String address = "127.0.0.1:" + door.port;
            for (var builder : List.of(Locks.builder().address(address), Locks.builder().sentinel("main", List.of(address)))) {
                try (var own = builder.open()) {
                    var thrown = assertThrows(ConnectionFailedException.class, own::ping);
                    assertTrue(thrown.getMessage().contains("is this a port for TLS?"), thrown.getMessage());
                }
            }
        }
    }

    @Test
    void pingNeedsTheRightToAskForLocks() throws Exception {
        for (var rules : List.of("~lock:* +lock.acquire", "~other:* +lock.fence", "~lock:* +lock.fence")) {
            server.command(("ACL SETUSER pinger reset on >secret " + rules).split(" "));
            try (var own = Locks.builder().url("redis://pinger:secret@" + server.address()).prefix("lock:").open()) {
                if (rules.equals("~lock:* +lock.fence")) {
                    assertEquals("0.3.0", own.ping());
                } else {
                    var thrown = assertThrows(ServerRefusedException.class, own::ping);
                    assertTrue(thrown.getMessage().contains("ping asks LOCK.FENCE lock:redislock:ping"), thrown.getMessage());
                }
            }
        }
        server.command("ACL", "DELUSER", "pinger");
    }
}
