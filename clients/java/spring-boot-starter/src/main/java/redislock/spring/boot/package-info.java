/** Makes the locks of redislock beans of a Spring Boot program. */
@NullMarked
package redislock.spring.boot;

import org.jspecify.annotations.NullMarked;
