package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The words of the library are those of the table that all client libraries have. */
class WordsTest {
    private static final Path PAGE = Path.of("../../../docs/reference/client-words.md");

    @Test
    void wordsAreThoseOfTheTable() throws IOException {
        int column = -1;
        int words = 0;
        for (var line : Files.readAllLines(PAGE)) {
            var cells = List.of(line.replaceFirst(" \\|$", "").split(" \\| "));
            if (line.startsWith("| concept |")) {
                column = cells.indexOf("Java");
            } else if (line.startsWith("| ") && column >= 0) {
                var parts = cells.get(column).split("`");
                assertTrue(parts.length > 1 || parts[0].equals("-"), line);
                for (int at = 1; at < parts.length; at += 2, words++) {
                    assertEquals(!parts[at - 1].strip().equals("lacks"), isExported(parts[at]), parts[at]);
                }
            }
        }
        assertTrue(words > 50, "" + words);
    }

    /** Each pitfall of the page has the tests that it names. */
    @Test
    void pitfallsAreTested() throws IOException {
        var sources = new HashMap<String, String>();
        try (var files = Files.walk(Path.of(".."))) {
            for (var file : files.filter(each -> each.toString().contains("src/test/java/redislock")
                    && each.toString().endsWith(".java")).toList()) {
                sources.put(file.getFileName().toString().replace(".java", ""), Files.readString(file));
            }
        }
        int rows = 0;
        for (var line : Files.readAllLines(Path.of("../../../docs/internals/pitfalls.md"))) {
            var cells = line.split(" \\| ");
            if (cells.length == 5 && !line.startsWith("| pitfall")) {
                rows++;
                var tests = Pattern.compile("`(\\w+)\\.(\\w+)`").matcher(cells[4]).results().toList();
                assertFalse(tests.isEmpty(), line);
                for (var test : tests) {
                    assertTrue(sources.getOrDefault(test.group(1), "").contains(" void " + test.group(2) + "("), test.group());
                }
            }
        }
        assertTrue(rows >= 16, "" + rows);
    }

    /**
     * True for the name of a public class, as LockLostException, and of a public method, as Locks.Builder.label. Classes of
     * other artifacts are looked for in their sources, as opentelemetry.Telemetry.
     */
    private static boolean isExported(String word) {
        int end = word.lastIndexOf('.');
        var type = "redislock." + (end < 0 ? word : word.substring(0, end)).replace('.', '$').replace("testing$", "testing.");
        try {
            var methods = Class.forName(type).getMethods();
            return end < 0 || Arrays.stream(methods).anyMatch(method -> method.getName().equals(word.substring(end + 1)));
        } catch (ClassNotFoundException e) {
            var path = "src/main/java/redislock/" + word.replace('.', '/') + ".java";
            return word.contains(".") && Files.exists(Path.of("..", word.substring(0, word.indexOf('.')), path));
        }
    }
}
