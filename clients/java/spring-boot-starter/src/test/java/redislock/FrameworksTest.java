package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.core.io.DefaultResourceLoader;

/** The recipes of docs/how-to/frameworks-java.md run as they stand. */
class FrameworksTest extends OneServer {
    private static String recipe(String name) throws IOException {
        return new Page("../../../docs/how-to/frameworks-java.md").shown("<!-- " + name + " -->\n```java\n(.*?)```");
    }

    private static String paid(HttpClient client, String port) {
        var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/invoices/42/pay"))
                .POST(HttpRequest.BodyPublishers.noBody()).timeout(SLACK).build();
        try {
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            return answer.statusCode() + " " + answer.body();
        } catch (IOException | InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void aRouteIsEnteredByOneRequestAtATime(@TempDir Path folder) throws Exception {
        var program = Page.compiled(folder, "invoices.Invoices", recipe("Invoices"));
        var client = HttpClient.newHttpClient();
        try (var instance = new SpringApplicationBuilder(new DefaultResourceLoader(program.getClassLoader()), program)
                .run("--server.port=0", "--server.address=127.0.0.1", "--redislock.url=redis://" + server.address(),
                        "--spring.main.banner-mode=off", "--logging.level.root=warn")) {
            var port = instance.getEnvironment().getProperty("local.server.port");
            eventually("it is paid, once the route has a connection", () -> paid(client, port).startsWith("200 paid with token "));
            try (var hold = locks.lock("invoice:42").acquire()) {
                var refused = paid(client, port);
                hold.check();
                assertTrue(refused.startsWith("423 could not acquire lock 'invoice:42'"), refused);
            }
            server.command("SET", "invoice:42", "another program's");
            var away = paid(client, port);
            assertTrue(away.startsWith("503 "), away);
            server.command("DEL", "invoice:42");
        }
    }

    /** Starts an instance of the program, whose job is due each second. */
    private static Process instance(Path folder) throws IOException {
        var classes = folder + System.getProperty("path.separator") + System.getProperty("java.class.path");
        return new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx64m", "-cp", classes,
                "reports.Reports").redirectErrorStream(true).start();
    }

    /** Reads what an instance says until it says one of these. */
    private static String said(BufferedReader out, List<String> words) throws IOException {
        for (String line = out.readLine(); line != null; line = out.readLine()) {
            if (words.contains(line)) {
                return line;
            }
        }
        return "nothing more";
    }

    @Test
    void oneMachineWritesTheReportAndIsNotStoppedInItsMiddle(@TempDir Path folder) throws Exception {
        var words = List.of("writes the report", "has written the report");
        var source = recipe("Reports").replace("127.0.0.1:6379", server.address()).replace("0 * * * * ?", "* * * * * ?");
        Page.compiled(folder, "reports.Reports", source);
        var first = instance(folder);
        var second = first;
        try {
            var saysFirst = first.inputReader();
            assertEquals("writes the report", said(saysFirst, words));
            first.toHandle().destroy(); // by SIGTERM: Process.destroy would close its output
            second = instance(folder);
            assertEquals("has written the report", said(saysFirst, words));
            assertEquals("nothing more", said(saysFirst, words));
            assertTrue(first.waitFor(SLACK.toSeconds(), TimeUnit.SECONDS));
            assertEquals("another machine does it", said(second.inputReader(), List.of("writes the report", "another machine does it")));
            assertTrue(server.isHeld("report"), "for the rest of its minute");
        } finally {
            first.destroyForcibly();
            second.destroyForcibly();
        }
    }
}
