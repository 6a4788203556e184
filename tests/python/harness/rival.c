/* A module that conflicts with another one.
 *
 *   loadmodule rival.so [command NAME] [type NAME] [files COUNT]
 *
 * With `command` it registers a command of this name, with `type` a data type. With `files` it keeps descriptors open.
 *
 *   CONFIG SET rival.level NUMBER
 *
 * refuses 666 when the setting is set, and 667 when all settings of the command are set and are applied.
 *
 * It asks the server for the few functions that it needs by name, as every module does: no header is needed. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);

enum { OK = 0, ERR = 1, REFUSED_AT_ONCE = 666, REFUSED_LATER = 667 };

/* RedisModuleTypeMethods of version 1. */
struct methods {
    uint64_t version;
    void *(*rdb_load)(void *, int);
    void (*rdb_save)(void *, void *);
    void (*aof_rewrite)(void *, RedisModuleString *, void *);
    size_t (*mem_usage)(const void *);
    void (*digest)(void *, void *);
    void (*free)(void *);
};

static void (*set_attributes)(RedisModuleCtx *, const char *, int, int);
static int (*create_command)(RedisModuleCtx *, const char *, Command, const char *, int, int, int);
static void *(*create_type)(RedisModuleCtx *, const char *, int, struct methods *);
static const char *(*text_of)(const RedisModuleString *, size_t *);
static int (*reply_null)(RedisModuleCtx *);
static int (*register_number)(
    RedisModuleCtx *, const char *, long long, unsigned, long long, long long,
    long long (*)(const char *, void *), int (*)(const char *, long long, void *, RedisModuleString **),
    int (*)(RedisModuleCtx *, void *, RedisModuleString **), void *);
static int (*load_configs)(RedisModuleCtx *);

static long long level;

static int reply_nothing(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    return reply_null(ctx);
}

static void *no_load(void *io, int version) { return (void)io, (void)version, NULL; }
static void no_save(void *io, void *value) { (void)io, (void)value; }
static void no_free(void *value) { (void)value; }

static long long get_level(const char *name, void *data) { return (void)name, (void)data, level; }
static int set_level(const char *name, long long value, void *data, RedisModuleString **error) {
    (void)name, (void)data, (void)error;
    if (value == REFUSED_AT_ONCE) return ERR;
    level = value;
    return OK;
}
static int apply_level(RedisModuleCtx *ctx, void *data, RedisModuleString **error) {
    (void)ctx, (void)data, (void)error;
    return level == REFUSED_LATER ? ERR : OK;
}

static int do_as_told(RedisModuleCtx *ctx, const char *what, const char *which) {
    if (strcmp(what, "command") == 0) return create_command(ctx, which, reply_nothing, "", 0, 0, 0);
    if (strcmp(what, "type") == 0) {
        struct methods methods = {1, no_load, no_save, NULL, NULL, NULL, no_free};
        return create_type(ctx, which, 0, &methods) ? OK : ERR;
    }
    if (strcmp(what, "files") == 0) {
        for (int i = atoi(which); i > 0; i--) {
            if (dup(STDIN_FILENO) < 0) return ERR;
        }
        return OK;
    }
    return ERR;
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(
    RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    /* The first word of a context is the function that finds all others. */
    int (*get_api)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    struct { const char *name; void *function; } wanted[] = {
        {"RedisModule_SetModuleAttribs", &set_attributes},
        {"RedisModule_CreateCommand", &create_command},
        {"RedisModule_CreateDataType", &create_type},
        {"RedisModule_StringPtrLen", &text_of},
        {"RedisModule_ReplyWithNull", &reply_null},
        {"RedisModule_RegisterNumericConfig", &register_number},
        {"RedisModule_LoadConfigs", &load_configs},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (get_api(wanted[i].name, wanted[i].function) != OK) return ERR;
    }
    set_attributes(ctx, "rival", 1, 1);
    for (int i = 0; i + 1 < argc; i += 2) {
        if (do_as_told(ctx, text_of(argv[i], NULL), text_of(argv[i + 1], NULL)) != OK) return ERR;
    }
    if (register_number(ctx, "level", 0, 0, 0, 1000, get_level, set_level, apply_level, NULL) != OK) return ERR;
    return load_configs(ctx);
}
