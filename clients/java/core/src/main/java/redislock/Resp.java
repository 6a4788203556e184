package redislock;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;

/** Writes requests and reads replies of RESP3: null, Long, String, Boolean, List, Map, {@link Refusal} or {@link Push}. */
final class Resp {
    private static final int LONGEST_TEXT = 64 << 20;
    private static final int LONGEST_LINE = 64 << 10;
    private static final int LONGEST_ARRAY = 1 << 20;
    private static final int DEEPEST = 16;

    /** An error that a server replied. */
    record Refusal(String text) {}

    /** A message that a server sends unasked. */
    record Push(List<Object> items) {}

    private final InputStream from;

    Resp(InputStream from) {
        this.from = from;
    }

    static byte[] command(List<String> words) {
        var text = new StringBuilder("*").append(words.size()).append("\r\n");
        for (String word : words) {
            text.append('$').append(length(word)).append("\r\n").append(word).append("\r\n");
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static int length(String word) {
        for (int at = 0; at < word.length(); at++) {
            if (word.charAt(at) > 127) {
                return word.getBytes(StandardCharsets.UTF_8).length;
            }
        }
        return word.length();
    }

    /** Reads one reply. An exception means that the connection failed; an error reply is returned as a reply. */
    Object read() throws IOException {
        return read(0);
    }

    private Object read(int depth) throws IOException {
        if (depth > DEEPEST) {
            throw noResp("its reply is nested more than " + DEEPEST + " times");
        }
        String line = line();
        if (line.isEmpty()) {
            throw noResp("it replied an empty line");
        }
        String text = line.substring(1);
        return switch (line.charAt(0)) {
            case '+', ',', '(' -> text;
            case '-' -> new Refusal(text);
            case ':' -> number(text);
            case '#' -> text.equals("t");
            case '_' -> null;
            case '$', '=', '!', '*', '~', '>', '%', '|' -> sized(line.charAt(0), number(text), depth);
            default -> throw noResp("it replied '" + line.substring(0, Math.min(60, line.length())) + "'");
        };
    }

    private Object sized(char kind, long size, int depth) throws IOException {
        if (size < 0) {
            return null;
        }
        switch (kind) {
            case '$', '=', '!':
                if (size > LONGEST_TEXT) {
                    throw noResp("it replied a text of " + size + " bytes");
                }
                byte[] body = from.readNBytes((int) size);
                if (body.length < size || from.readNBytes(2).length < 2) {
                    throw new EOFException("the server closed the connection");
                }
                String text = new String(body, StandardCharsets.UTF_8);
                return kind == '!' ? new Refusal(text) : text;
            case '*', '~':
                return items(size, depth);
            case '>':
                return new Push(items(size, depth));
            default:
                break;
        }
        List<Object> items = items(2 * size, depth);
        if (kind == '|') { // attributes of the reply that follows
            return read(depth + 1);
        }
        var found = new HashMap<Object, Object>();
        for (int at = 0; at < items.size(); at += 2) {
            found.put(items.get(at), items.get(at + 1));
        }
        return found;
    }

    private List<Object> items(long count, int depth) throws IOException {
        if (count > LONGEST_ARRAY) {
            throw noResp("it replied " + count + " items");
        }
        var items = new ArrayList<>();
        for (long at = 0; at < count; at++) {
            items.add(read(depth + 1));
        }
        return items;
    }

    private String line() throws IOException {
        var line = new StringBuilder();
        int last = 0;
        while (true) {
            int next = from.read();
            if (next < 0) {
                throw new EOFException("the server closed the connection");
            }
            if (next == '\n' && last == '\r') {
                line.setLength(line.length() - 1);
                // The bytes of a line are those of UTF-8, as are those of a text.
                return new String(line.toString().getBytes(StandardCharsets.ISO_8859_1), StandardCharsets.UTF_8);
            }
            line.append((char) next);
            last = next;
            if (line.length() > LONGEST_LINE) {
                throw noResp("a line of its reply has no end");
            }
        }
    }

    private static long number(String text) throws IOException {
        try {
            return Long.parseLong(text);
        } catch (NumberFormatException e) {
            throw noResp("it replied '" + text + "' where a number must be");
        }
    }

    private static IOException noResp(String what) {
        return new IOException("this peer does not speak RESP3: " + what);
    }
}
