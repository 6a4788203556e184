package redislock;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class NullsTest extends OneServer {
    /** True for what takes nothing of a program. */
    private static boolean isMadeByTheLibrary(Class<?> type) {
        return type.isInterface() || type.isEnum() || Throwable.class.isAssignableFrom(type)
                || List.of(LockInfo.class, LockInfo.Holder.class, LockInfo.Waiter.class, DeadlockException.WaitStep.class).contains(type);
    }

    private static List<Class<?>> publicTypes() throws IOException, ClassNotFoundException {
        var root = Path.of("src/main/java");
        var found = new ArrayList<Class<?>>();
        try (var files = Files.walk(root)) {
            for (var file : files.filter(each -> each.toString().matches(".*[^o]\\.java|.*[^-]info\\.java")).toList()) {
                var type = Class.forName(root.relativize(file).toString().replace('/', '.').replaceFirst("\\.java$", ""));
                Stream.concat(Stream.of(type), Stream.of(type.getDeclaredClasses()))
                        .filter(each -> Modifier.isPublic(type.getModifiers() & each.getModifiers())).forEach(found::add);
            }
        }
        return found;
    }

    @Test
    void eachPublicMethodNamesTheArgumentThatIsNull() throws Exception {
        try (var testing = redislock.testing.Server.start(); var hold = locks.lock("held").acquire()) {
            var lock = locks.lock("k");
            var nulls = new Nulls(Map.of(Locks.class, locks, Locks.Builder.class, Locks.builder(), Lock.class, lock, Hold.class, hold,
                    Leader.class, locks.leader(lock), ThreadLock.class, lock.asLock(), redislock.testing.Server.class, testing));
            int tried = 0;
            for (var type : publicTypes()) {
                tried = isMadeByTheLibrary(type) ? tried : nulls.tries(type);
            }
            assertTrue(tried >= 40, tried + " arguments were tried");
            hold.check();
            assertTrue(locks.info("k").isEmpty(), "a body that is null has acquired nothing");
        }
    }
}
