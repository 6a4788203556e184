package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The programs of README.md run, and print what they say. */
class ReadmeTest {
    private static List<String> found(String pattern, String text) {
        return Pattern.compile(pattern, Pattern.DOTALL).matcher(text).results().map((MatchResult one) -> one.group(1)).toList();
    }

    @Test
    void programsOfTheReadmePrintWhatTheySay(@TempDir Path directory) throws Exception {
        var programs = found("```java\n(import .*?)```", Files.readString(Path.of("../README.md")));
        assertEquals(7, programs.size());
        try (var server = new Server()) {
            for (var program : programs) {
                var wanted = found("// prints: ([^\n]*)", program);
                assertFalse(wanted.isEmpty(), program);
                assertEquals(String.join("\n", wanted), printed(directory, program.replace("127.0.0.1:6379", server.address())
                        .replace("\"127.0.0.1\", 6379", "\"127.0.0.1\", " + server.port)), program);
            }
        }
    }

    private static String printed(Path directory, String program) throws IOException, InterruptedException {
        var name = found("public class (\\w+)", program).get(0);
        var file = Files.writeString(directory.resolve(name + ".java"), program);
        var log = directory.resolve(name + ".log");
        var java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        var process = new ProcessBuilder(java, "-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path"), file.toString())
                .redirectError(log.toFile()).redirectOutput(directory.resolve(name + ".out").toFile()).start();
        assertTrue(process.waitFor(4 * Server.SLACK.toSeconds(), TimeUnit.SECONDS), "it does not end");
        assertEquals(0, process.exitValue(), Files.readString(log));
        return Files.readString(directory.resolve(name + ".out")).trim();
    }
}
