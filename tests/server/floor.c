/* The least that any module can do. What a lock costs is held against that.
 *
 * FLOOR.TAKE takes a token, or blocks its client until it is given one, first come first. FLOOR.GIVE gives it to the
 * client that has waited longest. Nobody is checked, and nothing is kept in the keyspace or replicated.
 *
 * FLOOR.SET key [key ...] sets keys to a value of a native type that says nothing and takes no memory of the module.
 *
 * The server's header is not needed: what is used of it is declared here. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct Ctx Ctx;
typedef struct Str Str;
typedef struct Key Key;
typedef struct Type Type;
typedef struct Blocked Blocked;
typedef int (*Command)(Ctx *, Str **, int);

/* RedisModuleTypeMethods of version 1. */
struct methods {
    uint64_t version;
    void *(*rdb_load)(void *, int);
    void (*rdb_save)(void *, void *);
    void (*aof_rewrite)(void *, Str *, void *);
    size_t (*mem_usage)(const void *);
    void (*digest)(void *, void *);
    void (*free)(void *);
};

static int (*get_api)(const char *, void *);
static int (*set_attribs)(Ctx *, const char *, int, int);
static int (*create_command)(Ctx *, const char *, Command, const char *, int, int, int);
static Type *(*create_type)(Ctx *, const char *, int, struct methods *);
static Key *(*open_key)(Ctx *, Str *, int);
static void (*close_key)(Key *);
static int (*set_value)(Key *, Type *, void *);
static int (*reply_number)(Ctx *, long long);
static Blocked *(*block)(Ctx *, Command, Command, void (*)(Ctx *, void *), long long);
static int (*unblock)(Blocked *, void *);
static void (*on_disconnect)(Blocked *, void (*)(Ctx *, Blocked *));

static Type *type;
static int is_free = 1;

struct waiter {
    Blocked *client;
    struct waiter *next;
};
static struct waiter *first, **last = &first;

static void let_go(struct waiter **at) {
    struct waiter *gone = *at;
    if (last == &gone->next) last = at;
    *at = gone->next;
    unblock(gone->client, gone);
    free(gone);
}

static int is_given(Ctx *ctx, Str **argv, int argc) {
    (void)argv, (void)argc;
    return reply_number(ctx, 1);
}

static void left(Ctx *ctx, Blocked *client) {
    (void)ctx;
    for (struct waiter **at = &first; *at; at = &(*at)->next) {
        if ((*at)->client != client) continue;
        let_go(at);
        return;
    }
}

static int take(Ctx *ctx, Str **argv, int argc) {
    (void)argv, (void)argc;
    if (is_free) {
        is_free = 0;
        return reply_number(ctx, 1);
    }
    struct waiter *waiter = malloc(sizeof *waiter);
    if (!waiter) abort();
    waiter->client = block(ctx, is_given, NULL, NULL, 0);
    on_disconnect(waiter->client, left);
    waiter->next = NULL;
    *last = waiter;
    last = &waiter->next;
    return 0;
}

static int give(Ctx *ctx, Str **argv, int argc) {
    (void)argv, (void)argc;
    if (first) let_go(&first);
    else is_free = 1;
    return reply_number(ctx, 1);
}

static int set(Ctx *ctx, Str **argv, int argc) {
    for (int number = 1; number < argc; number++) {
        Key *key = open_key(ctx, argv[number], 2); /* REDISMODULE_WRITE */
        set_value(key, type, &type);
        close_key(key);
    }
    return reply_number(ctx, argc - 1);
}

static void *load(void *io, int encoding) {
    (void)io, (void)encoding;
    return &type;
}
static void save(void *io, void *value) { (void)io, (void)value; }
static void rewrite(void *io, Str *key, void *value) { (void)io, (void)key, (void)value; }
static void let_value_go(void *value) { (void)value; }

#define GET(name, into) if (get_api("RedisModule_" name, (void *)&into)) return 1

int RedisModule_OnLoad(Ctx *ctx, Str **argv, int argc) {
    (void)argv, (void)argc;
    get_api = *(int (**)(const char *, void *))ctx;
    GET("SetModuleAttribs", set_attribs);
    GET("CreateCommand", create_command);
    GET("CreateDataType", create_type);
    GET("OpenKey", open_key);
    GET("CloseKey", close_key);
    GET("ModuleTypeSetValue", set_value);
    GET("ReplyWithLongLong", reply_number);
    GET("BlockClient", block);
    GET("UnblockClient", unblock);
    GET("SetDisconnectCallback", on_disconnect);
    set_attribs(ctx, "floor", 1, 1);
    struct methods methods = {1, load, save, rewrite, NULL, NULL, let_value_go};
    type = create_type(ctx, "floor-val", 0, &methods);
    return !type || create_command(ctx, "floor.take", take, "fast", 0, 0, 0)
        || create_command(ctx, "floor.give", give, "fast", 0, 0, 0)
        || create_command(ctx, "floor.set", set, "write fast", 1, -1, 1);
}
