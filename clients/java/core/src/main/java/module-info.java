/** Locks on a Redis or Valkey server that has the module redislock. */
module redislock {
    requires static transitive org.jspecify;

    exports redislock;
    exports redislock.testing;
}
