/* A module with the usual features of other modules, for LOCK.EXEC to run.
 *
 *   NEIGHBOUR.REPLY kind          replies in this way: see `kinds`
 *   NEIGHBOUR.RUN command...      runs the command; its keys are those of the command
 *   NEIGHBOUR.PROMISE command...  runs the command as one that may block (from Redis 7.2 on); "promise" if it does
 *   NEIGHBOUR.BLOCK               blocks its client without looking whether that may be blocked, and says so in its flags;
 *                                 loaded with any argument it does neither
 *   NEIGHBOUR.YIELD ms            runs that long, and lets the server send replies and close connections meanwhile
 *
 * It asks the server for the few functions that it needs by name, as every module does: no header is needed. */

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef struct RedisModuleBlockedClient RedisModuleBlockedClient;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);

enum { OK = 0, ERR = 1, KINDS = 9, PROMISE = 12, WITH_CLIENTS = 1 };

static int is_harmless;

static void (*set_attributes)(RedisModuleCtx *, const char *, int, int);
static int (*create_command)(RedisModuleCtx *, const char *, Command, const char *, int, int, int);
static const char *(*text_of)(const RedisModuleString *, size_t *);
static int (*reply_array)(RedisModuleCtx *, long);
static int (*reply_map)(RedisModuleCtx *, long);
static int (*reply_set)(RedisModuleCtx *, long);
static int (*reply_attribute)(RedisModuleCtx *, long);
static int (*reply_number)(RedisModuleCtx *, long long);
static int (*reply_double)(RedisModuleCtx *, double);
static int (*reply_bool)(RedisModuleCtx *, int);
static int (*reply_null)(RedisModuleCtx *);
static int (*reply_text)(RedisModuleCtx *, const char *, size_t);
static int (*reply_verbatim)(RedisModuleCtx *, const char *, size_t, const char *);
static int (*reply_big)(RedisModuleCtx *, const char *, size_t);
static int (*reply_error)(RedisModuleCtx *, const char *);
static int (*reply_as)(RedisModuleCtx *, RedisModuleCallReply *);
static RedisModuleCallReply *(*call)(RedisModuleCtx *, const char *, const char *, ...);
static void (*free_reply)(RedisModuleCallReply *);
static int (*type_of)(RedisModuleCallReply *);
static int (*asks_for_keys)(RedisModuleCtx *);
static int *(*keys_of)(RedisModuleCtx *, RedisModuleString **, int, int *);
static void (*key_at)(RedisModuleCtx *, int);
static void (*give_back)(void *);
static RedisModuleBlockedClient *(*block)(RedisModuleCtx *, Command, Command, void *, long long);
static void (*yield)(RedisModuleCtx *, int, const char *);

static int a_map(RedisModuleCtx *ctx) {
    reply_map(ctx, 2);
    reply_text(ctx, "half", 4), reply_double(ctx, 0.5);
    return reply_number(ctx, 7), reply_bool(ctx, 1);
}
static int a_set(RedisModuleCtx *ctx) { return reply_set(ctx, 1), reply_text(ctx, "one", 3); }
static int a_double(RedisModuleCtx *ctx) { return reply_double(ctx, 2.25); }
static int a_bool(RedisModuleCtx *ctx) { return reply_bool(ctx, 0); }
static int a_null(RedisModuleCtx *ctx) { return reply_null(ctx); }
static int a_verbatim(RedisModuleCtx *ctx) { return reply_verbatim(ctx, "# plain", 7, "mkd"); }
static int a_big(RedisModuleCtx *ctx) { return reply_big(ctx, "3492890328409238509324850943850943825024385", 43); }
static int an_attribute(RedisModuleCtx *ctx) {
    /* Nothing is sent of an attribute, and an error is returned, where the protocol has none. */
    if (reply_attribute(ctx, 1) == OK) reply_text(ctx, "ttl", 3), reply_number(ctx, 3600);
    return reply_text(ctx, "said", 4);
}
static int a_list(RedisModuleCtx *ctx) {
    reply_array(ctx, 3);
    return reply_error(ctx, "NOTNOW come back later"), a_set(ctx), reply_text(ctx, "\0\r\n", 3);
}

static const struct { const char *name; int (*reply)(RedisModuleCtx *); } kinds[KINDS] = {
    {"map", a_map}, {"set", a_set}, {"double", a_double}, {"bool", a_bool}, {"null", a_null},
    {"verbatim", a_verbatim}, {"big", a_big}, {"attribute", an_attribute}, {"list", a_list},
};

static int reply_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    for (int i = 0; argc == 2 && i < KINDS; i++) {
        if (strcmp(text_of(argv[1], NULL), kinds[i].name) == 0) return kinds[i].reply(ctx);
    }
    return reply_error(ctx, "ERR no such kind");
}

static int run_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (asks_for_keys(ctx)) {
        int count = 0;
        int *positions = argc > 1 ? keys_of(ctx, argv + 1, argc - 1, &count) : NULL;
        for (int i = 0; positions && i < count; i++) key_at(ctx, positions[i] + 1);
        if (positions) give_back(positions);
        return OK;
    }
    if (argc < 2) return reply_error(ctx, "ERR no command");
    RedisModuleCallReply *reply = call(ctx, text_of(argv[1], NULL), "!E0v", argv + 2, (size_t)argc - 2);
    if (!reply) return reply_error(ctx, "ERR no reply");
    reply_as(ctx, reply);
    free_reply(reply);
    return OK;
}

static int promise_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return reply_error(ctx, "ERR no command");
    RedisModuleCallReply *reply = call(ctx, text_of(argv[1], NULL), "!KE0v", argv + 2, (size_t)argc - 2);
    if (!reply) return reply_error(ctx, "ERR no reply");
    if (type_of(reply) == PROMISE) {
        reply_text(ctx, "promise", 7);
    } else {
        reply_as(ctx, reply);
    }
    free_reply(reply);
    return OK;
}

static int block_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    if (is_harmless) return reply_null(ctx);
    block(ctx, NULL, NULL, NULL, 0);
    return OK;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int yield_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return reply_error(ctx, "ERR no time");
    long end = now_ms() + atol(text_of(argv[1], NULL));
    while (now_ms() < end) yield(ctx, WITH_CLIENTS, "busy");
    return reply_null(ctx);
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(
    RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    /* The first word of a context is the function that finds all others. */
    int (*get_api)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    struct { const char *name; void *function; } wanted[] = {
        {"RedisModule_SetModuleAttribs", &set_attributes},
        {"RedisModule_CreateCommand", &create_command},
        {"RedisModule_StringPtrLen", &text_of},
        {"RedisModule_ReplyWithArray", &reply_array},
        {"RedisModule_ReplyWithMap", &reply_map},
        {"RedisModule_ReplyWithSet", &reply_set},
        {"RedisModule_ReplyWithAttribute", &reply_attribute},
        {"RedisModule_ReplyWithLongLong", &reply_number},
        {"RedisModule_ReplyWithDouble", &reply_double},
        {"RedisModule_ReplyWithBool", &reply_bool},
        {"RedisModule_ReplyWithNull", &reply_null},
        {"RedisModule_ReplyWithStringBuffer", &reply_text},
        {"RedisModule_ReplyWithVerbatimStringType", &reply_verbatim},
        {"RedisModule_ReplyWithBigNumber", &reply_big},
        {"RedisModule_ReplyWithError", &reply_error},
        {"RedisModule_ReplyWithCallReply", &reply_as},
        {"RedisModule_Call", &call},
        {"RedisModule_FreeCallReply", &free_reply},
        {"RedisModule_CallReplyType", &type_of},
        {"RedisModule_IsKeysPositionRequest", &asks_for_keys},
        {"RedisModule_GetCommandKeys", &keys_of},
        {"RedisModule_KeyAtPos", &key_at},
        {"RedisModule_Free", &give_back},
        {"RedisModule_BlockClient", &block},
        {"RedisModule_Yield", &yield},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (get_api(wanted[i].name, wanted[i].function) != OK) return ERR;
    }
    set_attributes(ctx, "neighbour", 1, 1);
    if (create_command(ctx, "neighbour.reply", reply_command, "", 0, 0, 0) != OK) return ERR;
    if (create_command(ctx, "neighbour.run", run_command, "write getkeys-api", 1, 1, 1) != OK) return ERR;
    if (create_command(ctx, "neighbour.promise", promise_command, "write", 0, 0, 0) != OK) return ERR;
    if (create_command(ctx, "neighbour.yield", yield_command, "", 0, 0, 0) != OK) return ERR;
    is_harmless = argc > 0;
    return create_command(ctx, "neighbour.block", block_command, is_harmless ? "" : "blocking", 0, 0, 0);
}
