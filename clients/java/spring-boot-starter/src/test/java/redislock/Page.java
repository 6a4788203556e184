package redislock;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.StringWriter;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;

/** Code that a page of the documentation shows. */
final class Page {
    private final String text;

    Page(String path) throws IOException {
        text = Files.readString(Path.of(path));
    }

    /** Returns the code of the only match of a pattern, whose first group it is. */
    String shown(String pattern) {
        var found = Pattern.compile(pattern, Pattern.DOTALL).matcher(text).results().map((MatchResult one) -> one.group(1)).toList();
        assertTrue(found.size() == 1, found.size() + " times: " + pattern);
        return found.get(0);
    }

    /** Compiles a class into a folder, and returns it. */
    static Class<?> compiled(Path folder, String name, String source) throws IOException, ClassNotFoundException {
        var file = folder.resolve(name.replace('.', '/') + ".java");
        Files.createDirectories(file.getParent());
        Files.writeString(file, source);
        var compiler = ToolProvider.getSystemJavaCompiler();
        var said = new StringWriter();
        try (var files = compiler.getStandardFileManager(null, null, null)) {
            var options = List.of("-parameters", "-proc:none", "-d", folder.toString(), "-cp", System.getProperty("java.class.path"));
            boolean isCompiled = compiler.getTask(said, files, null, options, null, files.getJavaFileObjects(file)).call();
            assertTrue(isCompiled, said + source);
        }
        return Class.forName(name, true, new URLClassLoader(new URL[] {folder.toUri().toURL()}, Page.class.getClassLoader()));
    }
}
