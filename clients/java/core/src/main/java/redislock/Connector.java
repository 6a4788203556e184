package redislock;

import java.io.IOException;
import java.net.Socket;

/** Opens the connections in place of the library, for example with a driver's settings. */
@FunctionalInterface
public interface Connector {
    /**
     * Connects to a server. The library waits for 2 s at most, and closes a socket that comes
     * later.
     *
     * @param host the name or the address of a server, or of a sentinel
     * @param port its port
     * @return a connected socket
     * @throws IOException if it could not connect
     */
    Socket connect(String host, int port) throws IOException;
}
