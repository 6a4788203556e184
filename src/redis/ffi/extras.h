/* Names that only Valkey has, which the header of the redis-module crate lacks.
 *
 * Facts about an interface, written down by us; bound by bindgen in build.rs. The bits collide with
 * bits that Redis may give another meaning, so they are set only on a server that says it is Valkey. */

#ifndef REDISLOCK_EXTRAS_H
#define REDISLOCK_EXTRAS_H

/* Options of a module, Valkey 8.1 and later: the module's own replicated commands need no check. */
#define VALKEY_OPTION_SKIP_COMMAND_VALIDATION (1 << 4)

/* Options of a module, Valkey 9.0 and later: without it CLUSTER MIGRATESLOTS is refused for the
 * whole server. */
#define VALKEY_OPTION_HANDLE_ATOMIC_SLOT_MIGRATION (1 << 5)

/* Levels of the server's log, as the log function takes them. */
#define SERVER_LOG_NOTICE "notice"
#define SERVER_LOG_WARNING "warning"

/* The version of the type methods this module fills in: up to unlink2, which Redis 7.0 knows. */
#define TYPE_METHODS_WITH_UNLINK2 4
/* With aux_save2 (Redis 7.2): nothing is written while there is nothing to write. */
#define TYPE_METHODS_WITH_AUX_SAVE2 5

#endif
