package redislock;

import org.jspecify.annotations.Nullable;

/** The server does not know the commands of the module. */
public class ModuleMissingException extends LockException {
    private static final long serialVersionUID = 1L;

    ModuleMissingException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
