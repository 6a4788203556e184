/* A module that listens to the keyspace events of other modules, and reports them.
 *
 *   LISTENER.HEARD              all events since the last call: "lock.acquired door 0"
 *   LISTENER.ON event word...   at each such event it runs this command; "%" stands for the key
 *
 * It asks the server for the few functions that it needs by name, as every module does: no header is needed. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);
typedef int (*Listener)(RedisModuleCtx *, int, const char *, RedisModuleString *);

enum { OK = 0, ERR = 1, NOTIFY_MODULE = 1 << 13 };
enum { HEARD_MAX = 4096, WORDS_MAX = 8, WORD_BYTES = 64 };

static void (*set_attributes)(RedisModuleCtx *, const char *, int, int);
static int (*create_command)(RedisModuleCtx *, const char *, Command, const char *, int, int, int);
static int (*subscribe)(RedisModuleCtx *, int, Listener);
static const char *(*text_of)(const RedisModuleString *, size_t *);
static int (*selected_db)(RedisModuleCtx *);
static int (*reply_array)(RedisModuleCtx *, long);
static int (*reply_text)(RedisModuleCtx *, const char *, size_t);
static int (*reply_ok)(RedisModuleCtx *, const char *);
static int (*reply_error)(RedisModuleCtx *, const char *);
static RedisModuleString *(*new_string)(RedisModuleCtx *, const char *, size_t);
static void (*free_string)(RedisModuleCtx *, RedisModuleString *);
static RedisModuleCallReply *(*call)(RedisModuleCtx *, const char *, const char *, ...);
static void (*free_reply)(RedisModuleCallReply *);

static char *heard[HEARD_MAX];
static int heard_count;

/* The actions and their events; words[0] is the command. */
static char on_event[WORD_BYTES];
static char words[WORDS_MAX][WORD_BYTES];
static int word_count;
static int is_acting;

static void act(RedisModuleCtx *ctx, RedisModuleString *key) {
    RedisModuleString *argv[WORDS_MAX];
    size_t argc = 0;
    for (int i = 1; i < word_count; i++) {
        int is_key = strcmp(words[i], "%") == 0;
        size_t len = strlen(words[i]);
        const char *text = is_key ? text_of(key, &len) : words[i];
        argv[argc++] = new_string(ctx, text, len);
    }
    /* v: the arguments, !: to replicas and files too. */
    RedisModuleCallReply *reply = call(ctx, words[0], "!v", argv, argc);
    if (reply) free_reply(reply);
    while (argc > 0) free_string(ctx, argv[--argc]);
}

static int on_keyspace_event(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    (void)type;
    size_t len;
    const char *name = text_of(key, &len);
    if (heard_count < HEARD_MAX) {
        char *line = malloc(strlen(event) + len + 32);
        sprintf(line, "%s %.*s %d", event, (int)len, name, selected_db(ctx));
        heard[heard_count++] = line;
    }
    if (!is_acting && word_count > 0 && strcmp(event, on_event) == 0) {
        is_acting = 1;
        act(ctx, key);
        is_acting = 0;
    }
    return OK;
}

static int heard_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    reply_array(ctx, heard_count);
    for (int i = 0; i < heard_count; i++) {
        reply_text(ctx, heard[i], strlen(heard[i]));
        free(heard[i]);
    }
    heard_count = 0;
    return OK;
}

static int on_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 3 || argc - 2 > WORDS_MAX) return reply_error(ctx, "ERR an event and a command");
    word_count = 0;
    for (int i = 1; i < argc; i++) {
        size_t len;
        const char *text = text_of(argv[i], &len);
        if (len >= WORD_BYTES) return reply_error(ctx, "ERR a word is too long");
        memcpy(i == 1 ? on_event : words[i - 2], text, len);
        (i == 1 ? on_event : words[i - 2])[len] = 0;
    }
    word_count = argc - 2;
    return reply_ok(ctx, "OK");
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(
    RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    /* The first word of a context is the function that finds all others. */
    int (*get_api)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    struct { const char *name; void *function; } wanted[] = {
        {"RedisModule_SetModuleAttribs", &set_attributes},
        {"RedisModule_CreateCommand", &create_command},
        {"RedisModule_SubscribeToKeyspaceEvents", &subscribe},
        {"RedisModule_StringPtrLen", &text_of},
        {"RedisModule_GetSelectedDb", &selected_db},
        {"RedisModule_ReplyWithArray", &reply_array},
        {"RedisModule_ReplyWithStringBuffer", &reply_text},
        {"RedisModule_ReplyWithSimpleString", &reply_ok},
        {"RedisModule_ReplyWithError", &reply_error},
        {"RedisModule_CreateString", &new_string},
        {"RedisModule_FreeString", &free_string},
        {"RedisModule_Call", &call},
        {"RedisModule_FreeCallReply", &free_reply},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (get_api(wanted[i].name, wanted[i].function) != OK) return ERR;
    }
    set_attributes(ctx, "listener", 1, 1);
    if (create_command(ctx, "listener.heard", heard_command, "", 0, 0, 0) != OK) return ERR;
    if (create_command(ctx, "listener.on", on_command, "", 0, 0, 0) != OK) return ERR;
    return subscribe(ctx, NOTIFY_MODULE, on_keyspace_event);
}
