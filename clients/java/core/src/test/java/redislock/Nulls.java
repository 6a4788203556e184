package redislock;

import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import javax.net.ssl.SSLSocketFactory;

/** Tries each public method of a class with a null for each argument in turn, which must be refused by its name. */
final class Nulls {
    private static final Map<Class<?>, Object> EXAMPLES = Map.of(String.class, "127.0.0.1:1", Duration.class, Duration.ofSeconds(2),
            List.class, List.of("127.0.0.1:1"), TimeUnit.class, TimeUnit.SECONDS, SSLSocketFactory.class,
            SSLSocketFactory.getDefault(), long.class, 1L, int.class, 1);

    private final Map<Class<?>, Object> examples;
    private int tried;

    /** Takes values of types that it does not know. */
    Nulls(Map<Class<?>, Object> examples) {
        this.examples = examples;
    }

    private Object example(Class<?> type) {
        Object found = examples.getOrDefault(type, EXAMPLES.get(type));
        return found != null ? found
                : Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> null);
    }

    /** Tries what the class declares itself, and returns how many arguments were tried until now. */
    int tries(Class<?> type) throws ReflectiveOperationException {
        boolean isListener = LockListener.class.isAssignableFrom(type); // whose methods the library calls
        for (Executable each : Stream.concat(Stream.of(type.getConstructors()), Stream.of(type.getDeclaredMethods())).toList()) {
            if (!Modifier.isPublic(each.getModifiers()) || each.isSynthetic() || each.getName().equals("equals")
                    || isListener && each instanceof Method) {
                continue;
            }
            for (int at = 0; at < each.getParameterCount(); at++) {
                var parameter = each.getParameters()[at];
                boolean mayBeNull = Stream.of(parameter.getAnnotatedType().getAnnotations()).anyMatch(found ->
                        found.annotationType().getSimpleName().equals("Nullable"));
                if (!parameter.getType().isPrimitive() && !mayBeNull) {
                    refuses(each, at, null);
                }
                if (parameter.getType() == List.class) {
                    refuses(each, at, Arrays.asList("127.0.0.1:1", null));
                }
            }
        }
        return tried;
    }

    /** Calls it with one argument that is wrong, and all others as they should be. */
    private void refuses(Executable what, int at, Object wrong) throws ReflectiveOperationException {
        tried++;
        var arguments = Arrays.stream(what.getParameterTypes()).map(this::example).toArray();
        arguments[at] = wrong;
        try {
            if (what instanceof Method method) {
                method.invoke(Modifier.isStatic(what.getModifiers()) ? null : example(what.getDeclaringClass()), arguments);
            } else {
                ((Constructor<?>) what).newInstance(arguments);
            }
        } catch (InvocationTargetException e) {
            // A setter is named as what it sets.
            for (var name : List.of(what.getParameters()[at].getName(), what.getName())) {
                var message = (wrong == null ? "" : "an element of ") + name + " must not be null";
                if (e.getCause() instanceof NullPointerException thrown && message.equals(thrown.getMessage())) {
                    return;
                }
            }
            throw new AssertionError(what + ", argument " + at + ": " + e.getCause(), e.getCause());
        }
        throw new AssertionError(what + " takes " + wrong + " for argument " + at);
    }
}
