/* The least that any module can do. The cost of a lock is compared with it.
 *
 * FLOOR.TAKE takes a token, or blocks its client until it is given one, first come first. FLOOR.GIVE gives it to the
 * client that has waited longest. No owner is checked, and nothing is kept in the keyspace or replicated.
 *
 * FLOOR.SET key [key ...] sets keys to a value of a native type that says nothing and takes no memory of the module.
 *
 * Loaded with the argument `promises`, it has FLOOR.ACQUIRE and FLOOR.RELEASE, too. They take the words of a lock, and
 * do with the token only the work of the server for a lock's promises. They open the key, check the rights of the next
 * client, replicate, and publish two events. The module receives all events that a lock needs, the turns of the event
 * loop among them. So fast could a lock be whose module takes no instruction of its own.
 *
 * The server's header is not needed: the used parts are declared here. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct Ctx Ctx;
typedef struct Str Str;
typedef struct Key Key;
typedef struct Type Type;
typedef struct Blocked Blocked;
typedef struct User User;
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

/* RedisModuleEvent. */
struct event {
    uint64_t id, version;
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
static Type *(*type_of)(Key *);
static void *(*value_of)(Key *);
static int (*delete_key)(Key *);
static int (*signal_key)(Ctx *, Str *);
static Str *(*new_str)(Ctx *, const char *, size_t);
static const char *(*bytes_of)(const Str *, size_t *);
static void (*free_str)(Ctx *, Str *);
static uint64_t (*client_id)(Ctx *);
static int (*context_flags)(Ctx *);
static Str *(*user_name)(Ctx *, uint64_t);
static User *(*user_called)(Str *);
static int (*may_run)(User *, Str **, int);
static void (*free_user)(User *);
static int (*replicate)(Ctx *, const char *, const char *, ...);
static int (*replicate_as_asked)(Ctx *);
static int (*publish)(Ctx *, int, const char *, Str *);
static int (*subscribe)(Ctx *, struct event, void (*)(Ctx *, struct event, uint64_t, void *));

static Type *type;
static int is_free = 1;

struct waiter {
    Blocked *client;
    uint64_t id;
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

static void wait_in_line(Ctx *ctx) {
    struct waiter *waiter = malloc(sizeof *waiter);
    if (!waiter) abort();
    waiter->id = client_id(ctx);
    waiter->client = block(ctx, is_given, NULL, NULL, 0);
    on_disconnect(waiter->client, left);
    waiter->next = NULL;
    *last = waiter;
    last = &waiter->next;
}

static int take(Ctx *ctx, Str **argv, int argc) {
    (void)argv, (void)argc;
    if (is_free) {
        is_free = 0;
        return reply_number(ctx, 1);
    }
    wait_in_line(ctx);
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

/* The arguments of LOCK.ACQUIRE and LOCK.RELEASE, and the record of a hold for replicas. */
static Str *acquire_word, *hold_word;
static const char *const TOKEN = "123456789012345", *const LEASE = "30000";
static const char *const OWNER = "9e3779b9-7f4a-4c15-a39c-c0605cedc834";

static Key *open_lock(Ctx *ctx, Str **argv, int argc) {
    size_t len;
    for (int number = 1; number < argc; number++) bytes_of(argv[number], &len);
    Key *key = open_key(ctx, argv[1], 3); /* REDISMODULE_READ | REDISMODULE_WRITE */
    type_of(key);
    value_of(key);
    return key;
}

static int acquire(Ctx *ctx, Str **argv, int argc) {
    Key *key = open_lock(ctx, argv, argc);
    if (!is_free) {
        close_key(key);
        context_flags(ctx);
        wait_in_line(ctx);
        return 0;
    }
    is_free = 0;
    set_value(key, type, &type);
    close_key(key);
    replicate_as_asked(ctx);
    return reply_number(ctx, 1);
}

/* Returns whether the user of this client may have this key. */
static int may_have(Ctx *ctx, uint64_t client, Str *key) {
    size_t len;
    const char *bytes = bytes_of(key, &len);
    Str *user = user_name(ctx, client), *copy = new_str(ctx, bytes, len);
    Str *argv[5] = {acquire_word, copy, acquire_word, acquire_word, acquire_word};
    User *its = user ? user_called(user) : NULL;
    int may = its && may_run(its, argv, 5) == 0;
    if (its) free_user(its);
    if (user) free_str(ctx, user);
    free_str(ctx, copy);
    return may;
}

static int release(Ctx *ctx, Str **argv, int argc) {
    Key *key = open_lock(ctx, argv, argc);
    if (!first) {
        is_free = 1;
        delete_key(key);
        close_key(key);
        replicate_as_asked(ctx);
        return reply_number(ctx, 1);
    }
    if (!may_have(ctx, first->id, argv[1])) abort();
    signal_key(ctx, argv[1]);
    close_key(key);
    replicate_as_asked(ctx);
    size_t token_len = 15, lease_len = 5, owner_len = 36;
    replicate(ctx, "FLOOR.HOLD", "ssbbb", argv[1], hold_word, TOKEN, token_len, LEASE, lease_len, OWNER, owner_len);
    publish(ctx, 1 << 17, "lock.released", argv[1]); /* REDISMODULE_NOTIFY_MODULE */
    publish(ctx, 1 << 17, "lock.acquired", argv[1]);
    let_go(&first);
    return reply_number(ctx, 1);
}

static int hold(Ctx *ctx, Str **argv, int argc) {
    (void)argv, (void)argc;
    return reply_number(ctx, 1);
}

static void heard(Ctx *ctx, struct event event, uint64_t part, void *data) {
    (void)ctx, (void)event, (void)part, (void)data;
}

static void *load(void *io, int encoding) {
    (void)io, (void)encoding;
    return &type;
}
static void save(void *io, void *value) { (void)io, (void)value; }
static void rewrite(void *io, Str *key, void *value) { (void)io, (void)key, (void)value; }
static void let_value_go(void *value) { (void)value; }

#define GET(name, into) if (get_api("RedisModule_" name, (void *)&into)) return 1

static int promise(Ctx *ctx) {
    /* Replication, loading, clients, cron, modules, SWAPDB, FLUSHDB, forks, settings; the event loop comes last. */
    static const uint64_t events[] = {0, 2, 3, 4, 8, 9, 11, 13, 14, 16, 15};
    for (size_t number = 0; number < sizeof events / sizeof *events; number++) {
        struct event event = {events[number], 1};
        if (subscribe(ctx, event, heard)) return 1;
    }
    acquire_word = new_str(NULL, "FLOOR.ACQUIRE", 13);
    hold_word = new_str(NULL, "HOLD", 4);
    return create_command(ctx, "floor.acquire", acquire, "write deny-oom fast", 1, 1, 1)
        || create_command(ctx, "floor.release", release, "write fast", 1, 1, 1)
        || create_command(ctx, "floor.hold", hold, "write fast", 1, 1, 1);
}

int RedisModule_OnLoad(Ctx *ctx, Str **argv, int argc) {
    (void)argv;
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
    GET("ModuleTypeGetType", type_of);
    GET("ModuleTypeGetValue", value_of);
    GET("DeleteKey", delete_key);
    GET("SignalModifiedKey", signal_key);
    GET("CreateString", new_str);
    GET("StringPtrLen", bytes_of);
    GET("FreeString", free_str);
    GET("GetClientId", client_id);
    GET("GetContextFlags", context_flags);
    GET("GetClientUserNameById", user_name);
    GET("GetModuleUserFromUserName", user_called);
    GET("ACLCheckCommandPermissions", may_run);
    GET("FreeModuleUser", free_user);
    GET("Replicate", replicate);
    GET("ReplicateVerbatim", replicate_as_asked);
    GET("NotifyKeyspaceEvent", publish);
    GET("SubscribeToServerEvent", subscribe);
    set_attribs(ctx, "floor", 1, 1);
    struct methods methods = {1, load, save, rewrite, NULL, NULL, let_value_go};
    type = create_type(ctx, "floor-val", 0, &methods);
    return !type || create_command(ctx, "floor.take", take, "fast", 0, 0, 0)
        || create_command(ctx, "floor.give", give, "fast", 0, 0, 0)
        || create_command(ctx, "floor.set", set, "write fast", 1, -1, 1) || (argc > 0 && promise(ctx));
}
