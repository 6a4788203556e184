package redislock;

import java.io.IOException;
import java.net.Socket;

/** Makes connections in place of the library, as a driver does by its own settings. */
@FunctionalInterface
public interface Connector {
    /**
     * Connects, within 2 s: the library waits for no longer, and closes a socket that comes later.
     *
     * @param host the name or the address of a server, or of a sentinel
     * @param port its port
     * @return a connected socket
     * @throws IOException if that failed
     */
    Socket connect(String host, int port) throws IOException;
}
