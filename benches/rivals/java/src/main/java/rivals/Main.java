package rivals;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Measures a lock as programs in Java use it: the words and the answers are those of benches/rivals/go/main.go.
 *
 * <pre>rivals.Main SUBJECT LEASE_MS ADDRESS[,ADDRESS...]</pre>
 */
final class Main {
    private static final int CLIENTS_MOST = 10;

    private final String subject;
    private final Duration lease;
    private final List<String> addresses;
    private final List<Client> clients = new ArrayList<>();
    private final List<Client.Taker> takers = new ArrayList<>();

    private Main(String subject, Duration lease, List<String> addresses) {
        this.subject = subject;
        this.lease = lease;
        this.addresses = addresses;
    }

    public static void main(String[] words) throws Exception {
        var bench = new Main(words[0], Duration.ofMillis(Long.parseLong(words[1])), List.of(words[2].split(",")));
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(json(bench.answer(line.split(" "))));
            } catch (Exception e) {
                e.printStackTrace();
                System.exit(1); // libraries have threads that go on
            }
        }
        System.exit(0);
    }

    private static String json(Map<String, Double> found) {
        return found.entrySet().stream()
                .map(each -> "\"" + each.getKey() + "\": " + each.getValue())
                .collect(Collectors.joining(", ", "{", "}"));
    }

    private Map<String, Double> answer(String[] words) throws Exception {
        String last = words[words.length - 1];
        switch (words[0]) {
            case "open" -> open(words[1].equals("shared"), Integer.parseInt(last));
            case "take" -> takers.get(0).take();
            case "free" -> takers.get(0).free();
            case "shut" -> takers.clear();
            case "pairs" -> {
                return Measure.pairs(takers, Duration.ofMillis(Long.parseLong(last)));
            }
            case "handover" -> {
                return Measure.handOver(takers, Duration.ofMillis(Long.parseLong(last)));
            }
            case "loss" -> {
                return Measure.loss(takers.get(0));
            }
            case "probe" -> {
                return Measure.probe(takers, Long.parseLong(last));
            }
            default -> throw new IllegalArgumentException("not understood: " + words[0]);
        }
        return Map.of();
    }

    private void open(boolean isShared, int count) throws Exception {
        while (clients.size() < Math.min(count, CLIENTS_MOST)) {
            clients.add(Subjects.open(subject, addresses, lease));
        }
        for (int number = 0; number < count; number++) {
            String name = isShared ? "contended" : "own:" + number;
            takers.add(clients.get(number % clients.size()).taker(name));
        }
    }
}
