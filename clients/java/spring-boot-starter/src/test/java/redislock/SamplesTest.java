package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.eventually;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.core.io.DefaultResourceLoader;

/** The sample programs do what they say. */
class SamplesTest extends OneServer {
    /** Starts an instance of the program of README.md, whose jobs are due each second. */
    private static ConfigurableApplicationContext instance(Class<?> program) {
        var loader = new DefaultResourceLoader(program.getClassLoader());
        return new SpringApplicationBuilder(loader, program).run("--server.port=0", "--server.address=127.0.0.1",
                "--daily=* * * * * *", "--weekly=* * * * * *", "--redislock.url=redis://" + server.address(),
                "--spring.main.banner-mode=off", "--logging.level.root=warn");
    }

    /** Asks an instance how often it has made the daily and the weekly report. */
    private static List<Integer> made(ConfigurableApplicationContext instance) {
        var page = URI.create("http://127.0.0.1:" + instance.getEnvironment().getProperty("local.server.port") + "/reports");
        try (var body = page.toURL().openStream()) {
            return Stream.of(new String(body.readAllBytes()).split(" ")).map(Integer::valueOf).toList();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static List<Integer> madeByAll(List<ConfigurableApplicationContext> instances) {
        var daily = instances.stream().mapToInt(one -> made(one).get(0)).sum();
        return List.of(daily, instances.stream().mapToInt(one -> made(one).get(1)).sum());
    }

    @Test
    void eachReportIsMadeOnceByTwoInstances(@TempDir Path folder) throws Exception {
        var program = Page.compiled(folder, "reports.Reports", new Page("../README.md").shown("```java\n(package reports.*?)```"));
        var instances = new ArrayList<ConfigurableApplicationContext>();
        try {
            instances.add(instance(program));
            instances.add(instance(program));
            eventually("both reports are made", () -> madeByAll(instances).stream().allMatch(count -> count > 0));
            long asked = server.calls("lock.acquire");
            eventually("both try again", () -> server.calls("lock.acquire") > asked + 7);
            assertEquals(List.of(1, 1), madeByAll(instances));
            var first = instances.remove(made(instances.get(0)).get(0) > 0 ? 0 : 1);
            first.close();
            assertTrue(server.isHeld("daily"), "lockAtLeastFor outlasts the instance");
            int before = made(instances.get(0)).get(0);
            server.command("DEL", "daily"); // another day
            eventually("the other instance makes it", () -> made(instances.get(0)).get(0) > before);
        } finally {
            instances.forEach(ConfigurableApplicationContext::close);
        }
    }
}
