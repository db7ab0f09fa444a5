/* A mock OpenAI streaming server whose timing is known, for measuring clients: one thread, epoll, no dependencies.
 *
 * Build: cc -O2 -o mockserver mockserver.c -lm         (engine_adapters/mock/process.py does it, and starts it)
 * Usage: mockserver [--port P] [--ttft-ms X] [--itl-ms X] [--itl-dist fixed|exp] [--phase] [--tokens-per-event K]
 *                   [--log FILE] [--max-conns N] [--die-with-stdin]
 * It listens on 127.0.0.1, prints its port, and ends on SIGTERM or SIGINT. Routes: POST /v1/chat/completions and
 * /v1/completions, streamed or whole; GET /v1/models, /health, /truth/flush (writes the log), /reset (clears it).
 * A request gets max_tokens tokens: the first TTFT after it was received, then one event each ITL. `--phase` delays the
 * first one by up to one ITL more, at random, so that streams do not tick together. Due times follow from due times, not
 * from when the server got to them, so that its own lateness never adds up.
 *
 * The log: FILE is CSV, a row a request; FILE.i64 has the instants of its events, n_events of them from first_event on.
 * Instants are CLOCK_MONOTONIC nanoseconds; an event's is read just before the send, so a client's is never earlier. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define IN_START 4096
#define IN_LIMIT (64u << 20)
#define DEFAULT_TOKENS 16
#define MAX_TOKENS 1000000
#define MAX_PER_EVENT 1024
#define WORD " the"
#define CREATED "1700000000"
#define SPARE_FILES 64

typedef struct { /* the truth about one request */
    char *request_id;
    char answer_id[20];
    uint64_t accepted_ns, received_ns, *at_ns;
    long asked, sent;
    unsigned n_events, room;
    int running;
} Row;

typedef struct {
    int fd, wants_out, busy, chat, stream, close_after, said_continue;
    char *in, *out;
    size_t n_in, in_room, n_out, sent, out_room;
    long left, n_tokens, prompt_tokens;
    int wants_usage, heap_at; /* place in the heap of timers, -1: none */
    uint64_t due_ns, accepted_ns;
    unsigned number;
    Row *row;
} Conn;

static struct { double ttft_ms, itl_ms; int exponential, phase, per_event, port, die_with_stdin; long max_conns; const char *log; }
    opt = {.per_event = 1, .max_conns = 20000};
static Conn **conns, **heap;
static Row **rows;
static size_t n_rows, rows_room;
static int epoll_fd, n_heap, n_open;
static unsigned n_requests;
static volatile sig_atomic_t ending;
static uint64_t random_state = 0x9E3779B97F4A7C15ull;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static double uniform(void) { /* in (0, 1]: xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return ((random_state * 0x2545F4914F6CDD1Dull >> 11) + 1) * 0x1p-53;
}

static void *resized(void *old, size_t n) {
    void *p = realloc(old, n);
    if (!p) { perror("mockserver"); exit(1); }
    return p;
}

static uint64_t gap_ns(void) { return opt.itl_ms * 1e6 * (opt.exponential ? -log(uniform()) : 1); }
static uint64_t first_gap_ns(void) { return opt.ttft_ms * 1e6 + (opt.phase ? uniform() * opt.itl_ms * 1e6 : 0); }

/* --- timers: a binary heap of connections by due time --------------------------------------------------------------- */

static void place(int i, Conn *c) { heap[i] = c; c->heap_at = i; }

static void sift(int i, Conn *c) { /* c goes to i or wherever from there its due time puts it */
    for (; i && heap[(i - 1) / 2]->due_ns > c->due_ns; i = (i - 1) / 2) place(i, heap[(i - 1) / 2]);
    for (int child; (child = 2 * i + 1) < n_heap; i = child) {
        child += child + 1 < n_heap && heap[child + 1]->due_ns < heap[child]->due_ns;
        if (heap[child]->due_ns >= c->due_ns) break;
        place(i, heap[child]);
    }
    place(i, c);
}

static void wake_at(Conn *c, uint64_t due_ns) {
    c->due_ns = due_ns;
    sift(c->heap_at >= 0 ? c->heap_at : n_heap++, c);
}

static void no_wake(Conn *c) {
    int i = c->heap_at;
    if (i < 0) return;
    c->heap_at = -1;
    if (i != --n_heap) sift(i, heap[n_heap]);
}

/* --- truth ---------------------------------------------------------------------------------------------------------- */

static char *plain(const char *text, size_t n) { /* a copy that can stand in a CSV field */
    char *copy = resized(NULL, n + 1);
    for (size_t i = 0; i < n; i++) copy[i] = text[i] == ',' || text[i] == '"' || (unsigned char)text[i] < 32 ? '_' : text[i];
    copy[n] = 0;
    return copy;
}

static void open_row(Conn *c, const char *id, size_t n_id, uint64_t received_ns) {
    if (!opt.log) return;
    Row *row = c->row = calloc(1, sizeof *row);
    if (!row) { perror("mockserver"); exit(1); }
    row->request_id = plain(id, n_id);
    snprintf(row->answer_id, sizeof row->answer_id, "%s%08x", c->chat ? "chatcmpl-" : "cmpl-", c->number);
    row->accepted_ns = c->accepted_ns;
    row->received_ns = received_ns;
    row->asked = c->n_tokens;
    row->running = 1;
    if (n_rows == rows_room) rows = resized(rows, (rows_room = rows_room ? 2 * rows_room : 1024) * sizeof *rows);
    rows[n_rows++] = row;
}

static void log_event(Row *row, uint64_t at_ns, long tokens) {
    if (!row) return;
    if (row->n_events == row->room) row->at_ns = resized(row->at_ns, (row->room = row->room ? 2 * row->room : 32) * sizeof(uint64_t));
    row->at_ns[row->n_events++] = at_ns;
    row->sent += tokens;
}

static void clear_truth(void) { /* requests that are still running stay */
    size_t kept = 0;
    for (size_t i = 0; i < n_rows; i++) {
        Row *row = rows[i];
        if (row->running) { rows[kept++] = row; continue; }
        free(row->request_id);
        free(row->at_ns);
        free(row);
    }
    n_rows = kept;
}

static int write_rows(FILE *csv, FILE *instants) {
    uint64_t at = 0;
    fputs("request_id,answer_id,accepted_at_ns,received_at_ns,tokens_asked,tokens,first_event,n_events\n", csv);
    for (size_t i = 0; i < n_rows; i++) {
        Row *r = rows[i];
        fprintf(csv, "%s,%s,%" PRIu64 ",%" PRIu64 ",%ld,%ld,%" PRIu64 ",%u\n", r->request_id, r->answer_id, r->accepted_ns,
                r->received_ns, r->asked, r->sent, at, r->n_events);
        if (r->n_events) fwrite(r->at_ns, sizeof(uint64_t), r->n_events, instants);
        at += r->n_events;
    }
    return (ferror(csv) | ferror(instants)) ? -1 : 0;
}

static int flush_truth(void) { /* 0, or -1 with errno: a reader sees the old log or the new one; instants before rows */
    char csv_part[4200], instants_part[4200], instants_name[4200];
    snprintf(csv_part, sizeof csv_part, "%s.part", opt.log);
    snprintf(instants_name, sizeof instants_name, "%s.i64", opt.log);
    snprintf(instants_part, sizeof instants_part, "%s.i64.part", opt.log);
    FILE *csv = fopen(csv_part, "w"), *instants = fopen(instants_part, "w");
    int bad = !csv || !instants || write_rows(csv, instants);
    if (csv) bad |= fclose(csv) != 0;
    if (instants) bad |= fclose(instants) != 0;
    return bad || rename(instants_part, instants_name) || rename(csv_part, opt.log) ? -1 : 0;
}

/* --- writing -------------------------------------------------------------------------------------------------------- */

static void put(Conn *c, const char *data, size_t n) {
    if (c->n_out + n > c->out_room) c->out = resized(c->out, c->out_room = 2 * (c->n_out + n));
    memcpy(c->out + c->n_out, data, n);
    c->n_out += n;
}

static void put_text(Conn *c, const char *text) { put(c, text, strlen(text)); }

static void end_answer(Conn *c) {
    no_wake(c);
    if (c->row) c->row->running = 0;
    c->row = NULL;
    c->busy = 0;
}

static void drop(Conn *c) {
    end_answer(c);
    close(c->fd);
    conns[c->fd] = NULL;
    n_open--;
    free(c->in);
    free(c->out);
    free(c);
}

static void watch_out(Conn *c, int on) {
    struct epoll_event e = {EPOLLIN | (on ? EPOLLOUT : 0), {.fd = c->fd}};
    if (on != c->wants_out) epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->wants_out = on;
}

static int flush(Conn *c) { /* -1: the connection is gone */
    while (c->sent < c->n_out) {
        ssize_t n = send(c->fd, c->out + c->sent, c->n_out - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) { watch_out(c, 1); return 0; }
        if (n < 0) { drop(c); return -1; }
        c->sent += n;
    }
    c->sent = c->n_out = 0;
    watch_out(c, 0);
    if (c->close_after && !c->busy) { drop(c); return -1; }
    return 0;
}

static int reply(Conn *c, const char *status, const char *body) {
    char head[256];
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %zu\r\n\r\n", status,
             c->close_after ? "connection: close\r\n" : "", strlen(body));
    put_text(c, head);
    put_text(c, body);
    return flush(c);
}

static int refuse(Conn *c, const char *status, const char *why) {
    char body[512];
    snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"type\":\"mock\",\"code\":%d}}", why, atoi(status));
    return reply(c, status, body);
}

/* --- the API's events; each is one SSE event in one HTTP chunk ------------------------------------------------------- */

static void put_event(Conn *c, const char *data) {
    char size[32];
    snprintf(size, sizeof size, "%zx\r\ndata: ", strlen(data) + 8);
    put_text(c, size);
    put_text(c, data);
    put(c, "\n\n\r\n", 4);
}

static const char *words(long n) {
    static char text[MAX_PER_EVENT * (sizeof WORD - 1) + 1];
    for (long i = 0; i < n; i++) memcpy(text + i * (sizeof WORD - 1), WORD, sizeof WORD - 1);
    text[n * (sizeof WORD - 1)] = 0;
    return text;
}

static void put_choice(Conn *c, const char *role, const char *text, const char *finish) {
    static char data[MAX_PER_EVENT * (sizeof WORD - 1) + 512];
    if (c->chat) {
        char delta[MAX_PER_EVENT * (sizeof WORD - 1) + 64] = "{}";
        if (text) snprintf(delta, sizeof delta, "{%s\"content\":\"%s\"}", role, text);
        snprintf(data, sizeof data, "{\"id\":\"chatcmpl-%08x\",\"object\":\"chat.completion.chunk\",\"created\":" CREATED ",\"model\":\"mock\","
                 "\"choices\":[{\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s}]}", c->number, delta, finish);
    } else {
        snprintf(data, sizeof data, "{\"id\":\"cmpl-%08x\",\"object\":\"text_completion\",\"created\":" CREATED ",\"model\":\"mock\","
                 "\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s}]}", c->number, text ? text : "", finish);
    }
    put_event(c, data);
}

static void put_tokens(Conn *c, long n) { /* the common event is formatted once for each API, then only numbered */
    static struct { char text[MAX_PER_EVENT * (sizeof WORD - 1) + 512]; size_t n, number_at; } ready[2];
    if (n != opt.per_event) { put_choice(c, "", words(n), "null"); return; }
    if (!ready[c->chat].n) {
        size_t from = c->n_out;
        put_choice(c, "", words(n), "null");
        memcpy(ready[c->chat].text, c->out + from, ready[c->chat].n = c->n_out - from);
        ready[c->chat].number_at = (char *)memmem(c->out + from, c->n_out - from, "cmpl-", 5) + 5 - (c->out + from);
        return;
    }
    put(c, ready[c->chat].text, ready[c->chat].n);
    char *digits = c->out + c->n_out - ready[c->chat].n + ready[c->chat].number_at;
    for (unsigned i = 0; i < 8; i++) digits[i] = "0123456789abcdef"[c->number >> (28 - 4 * i) & 15];
}

static void usage(const Conn *c, char *to, size_t room) {
    snprintf(to, room, "\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":%ld,\"total_tokens\":%ld}", c->prompt_tokens, c->n_tokens,
             c->prompt_tokens + c->n_tokens);
}

static void put_tail(Conn *c) {
    char counts[128], data[384];
    put_choice(c, "", NULL, "\"length\"");
    usage(c, counts, sizeof counts);
    snprintf(data, sizeof data, "{\"id\":\"%s%08x\",\"object\":\"%s\",\"created\":" CREATED ",\"model\":\"mock\",\"choices\":[],%s}",
             c->chat ? "chatcmpl-" : "cmpl-", c->number, c->chat ? "chat.completion.chunk" : "text_completion", counts);
    if (c->wants_usage) put_event(c, data);
    put_event(c, "[DONE]");
    put_text(c, "0\r\n\r\n");
}

static void put_whole(Conn *c) {
    size_t n_text = c->n_tokens * (sizeof WORD - 1);
    char *text = resized(NULL, n_text + 1), *body = resized(NULL, n_text + 640), counts[128];
    for (long i = 0; i < c->n_tokens; i++) memcpy(text + i * (sizeof WORD - 1), WORD, sizeof WORD - 1);
    text[n_text] = 0;
    usage(c, counts, sizeof counts);
    sprintf(body, "{\"id\":\"%s%08x\",\"object\":\"%s\",\"created\":" CREATED ",\"model\":\"mock\",\"choices\":[{\"index\":0,%s%s%s,"
            "\"logprobs\":null,\"finish_reason\":\"length\"}],%s}", c->chat ? "chatcmpl-" : "cmpl-", c->number,
            c->chat ? "chat.completion" : "text_completion", c->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"",
            text, c->chat ? "\"}" : "\"", counts);
    log_event(c->row, now_ns(), c->n_tokens);
    end_answer(c);
    reply(c, "200 OK", body);
    free(text);
    free(body);
}

static void send_next(Conn *c) { /* one event, or with ITL 0 all of them; and what follows the last */
    if (!c->stream) { put_whole(c); return; }
    if (c->chat && c->left == c->n_tokens) put_choice(c, "\"role\":\"assistant\",", "", "null");
    uint64_t at_ns = now_ns();
    do {
        long n = c->left < opt.per_event ? c->left : opt.per_event;
        put_tokens(c, n);
        log_event(c->row, at_ns, n);
        c->left -= n;
    } while (c->left && !opt.itl_ms);
    if (c->left) wake_at(c, c->due_ns + gap_ns());
    else { put_tail(c); end_answer(c); }
    flush(c);
}

/* --- requests ------------------------------------------------------------------------------------------------------- */

static const char *header(const char *head, const char *end, const char *name, size_t *n) { /* its value, or NULL */
    size_t n_name = strlen(name);
    for (const char *line = head, *stop; line < end; line = stop + 2) {
        stop = memmem(line, end + 2 - line, "\r\n", 2); /* at the latest where the head ends */
        if ((size_t)(stop - line) <= n_name || line[n_name] != ':' || strncasecmp(line, name, n_name)) continue;
        const char *value = line + n_name + 1;
        while (value < stop && (*value == ' ' || *value == '\t')) value++;
        *n = stop - value;
        return value;
    }
    return NULL;
}

static int says(const char *head, const char *end, const char *name, const char *value) {
    size_t n;
    const char *at = header(head, end, name, &n);
    return at && n == strlen(value) && !strncasecmp(at, value, n);
}

static const char *value_of(const char *json, const char *key) { /* of a key in quotes; inside a text they are escaped */
    const char *at = strstr(json, key);
    if (!at) return NULL;
    for (at += strlen(key); *at == ' ' || *at == ':'; at++) ;
    return at;
}

static int is_true(const char *json, const char *key) {
    const char *value = value_of(json, key);
    return value && !strncmp(value, "true", 4);
}

static long count_words(const char *json, const char *key) { /* of all texts under the key; numbers in a list count too */
    long n = 0;
    for (const char *at = json; (at = value_of(at, key)); ) {
        char quote = *at == '[' ? ']' : *at == '"' ? '"' : 0, before = ' ';
        if (!quote || (quote == ']' && at[1] != '-' && (at[1] < '0' || at[1] > '9'))) continue;
        for (at++; *at && *at != quote; before = *at++) {
            if (*at == '\\' && at[1]) { n += before == ' '; before = *++at; continue; }
            n += quote == ']' ? *at == ',' : *at != ' ' && before == ' ';
        }
        n += quote == ']';
    }
    return n;
}

static void start(Conn *c, const char *body, const char *id, size_t n_id) {
    uint64_t received_ns = now_ns();
    const char *asked = value_of(body, "\"max_completion_tokens\"");
    if (!asked || *asked == 'n') asked = value_of(body, "\"max_tokens\"");
    long n = asked ? strtol(asked, NULL, 10) : 0;
    c->n_tokens = c->left = n <= 0 ? DEFAULT_TOKENS : n > MAX_TOKENS ? MAX_TOKENS : n;
    c->stream = is_true(body, "\"stream\"");
    c->wants_usage = is_true(body, "\"include_usage\"");
    c->prompt_tokens = count_words(body, "\"content\"") + count_words(body, "\"prompt\"") + count_words(body, "\"text\"");
    c->number = n_requests++;
    c->busy = 1;
    open_row(c, id, n_id, received_ns);
    if (c->stream) {
        put_text(c, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n");
        put_text(c, c->close_after ? "connection: close\r\n" : "");
        put_text(c, "transfer-encoding: chunked\r\n\r\n");
    }
    c->due_ns = received_ns + first_gap_ns();
    if (!c->stream && opt.itl_ms) for (long i = opt.per_event; i < c->n_tokens; i += opt.per_event) c->due_ns += gap_ns();
    if (c->due_ns <= received_ns) send_next(c);
    else if (flush(c) == 0) wake_at(c, c->due_ns);
}

static void answer(Conn *c, const char *head, const char *end, const char *body) {
    size_t n_id = 0, n_path;
    const char *id = header(head, end, "x-request-id", &n_id), *space = strchr(head, ' '), *path = space ? space + 1 : "";
    int is_get = !strncmp(head, "GET ", 4), is_post = !strncmp(head, "POST ", 5);
    n_path = strcspn(path, " ?");
#define IS(route) (n_path == sizeof route - 1 && !strncmp(path, route, n_path))
    c->chat = IS("/v1/chat/completions");
    if (is_post && (c->chat || IS("/v1/completions"))) start(c, body, id ? id : "", n_id);
    else if (is_get && IS("/v1/models"))
        reply(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":" CREATED ",\"owned_by\":\"openloop\"}]}");
    else if (is_get && (IS("/health") || IS("/ping"))) reply(c, "200 OK", "{}");
    else if (IS("/reset")) { clear_truth(); reply(c, "200 OK", "{}"); }
    else if (IS("/truth/flush") && !opt.log) refuse(c, "404 Not Found", "no log: start with --log FILE");
    else if (IS("/truth/flush") && flush_truth()) refuse(c, "500 Internal Server Error", strerror(errno));
    else if (IS("/truth/flush")) reply(c, "200 OK", "{}");
    else refuse(c, "404 Not Found", "no such route");
#undef IS
}

static int take_request(Conn *c) { /* 1: a whole request was taken up, 0: more bytes are needed or the connection is gone */
    char *end = c->n_in ? memmem(c->in, c->n_in, "\r\n\r\n", 4) : NULL;
    if (!end) return 0;
    size_t n, head_bytes = end + 4 - c->in, body_bytes = 0;
    const char *length = header(c->in, end, "content-length", &n);
    if (length) body_bytes = strtoul(length, NULL, 10);
    if (header(c->in, end, "transfer-encoding", &n) || body_bytes > IN_LIMIT - head_bytes) {
        c->close_after = 1;
        refuse(c, length ? "413 Content Too Large" : "411 Length Required", "a body needs a content-length of at most 64 MiB");
        return 0;
    }
    if (c->n_in < head_bytes + body_bytes) {
        if (!c->said_continue++ && says(c->in, end, "expect", "100-continue")) { put_text(c, "HTTP/1.1 100 Continue\r\n\r\n"); flush(c); }
        return 0;
    }
    c->close_after = says(c->in, end, "connection", "close");
    static char *request; /* a copy: answering may drop the connection */
    static size_t room;
    size_t taken = head_bytes + body_bytes;
    if (taken + 1 > room) request = resized(request, room = 2 * (taken + 1));
    memcpy(request, c->in, taken);
    request[taken] = 0;
    memmove(c->in, c->in + taken, c->n_in -= taken);
    c->said_continue = 0;
    answer(c, request, request + (end - c->in), request + head_bytes);
    return 1;
}

static void take_requests(int fd) { /* those that are complete, one after another; an answer may end the connection */
    while (conns[fd] && !conns[fd]->busy && take_request(conns[fd])) ;
}

static void readable(Conn *c) {
    if (c->in_room - c->n_in < IN_START / 2) c->in = resized(c->in, c->in_room = c->in_room ? 2 * c->in_room : IN_START);
    ssize_t n = recv(c->fd, c->in + c->n_in, c->in_room - c->n_in, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || (c->n_in += n) > IN_LIMIT) { drop(c); return; }
    take_requests(c->fd);
}

static void welcome(int listener) { /* beyond the limit a connection is closed at once */
    int one = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0; ) {
        if (n_open >= opt.max_conns || fd >= opt.max_conns + SPARE_FILES) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Conn *c = conns[fd] = calloc(1, sizeof(Conn));
        if (!c) { perror("mockserver"); exit(1); }
        c->fd = fd;
        c->heap_at = -1;
        c->accepted_ns = now_ns();
        n_open++;
        struct epoll_event e = {EPOLLIN, {.fd = fd}};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

/* --- the loop ------------------------------------------------------------------------------------------------------- */

static void send_due(void) {
    for (uint64_t now = now_ns(); n_heap && heap[0]->due_ns <= now; now = now_ns()) {
        int fd = heap[0]->fd;
        send_next(heap[0]);
        take_requests(fd); /* one that came while this one was answered */
    }
}

static int wait_events(struct epoll_event *events, int room, const sigset_t *open_signals) { /* ppoll: nanoseconds */
    struct pollfd poller = {epoll_fd, POLLIN, 0};
    struct timespec t = {0, 0};
    uint64_t now = now_ns();
    if (n_heap && heap[0]->due_ns > now) t = (struct timespec){(heap[0]->due_ns - now) / 1000000000, (heap[0]->due_ns - now) % 1000000000};
    if (ppoll(&poller, 1, n_heap ? &t : NULL, open_signals) <= 0) return 0;
    return epoll_wait(epoll_fd, events, room, 0);
}

static void serve(int listener, const sigset_t *open_signals) {
    struct epoll_event events[256];
    while (!ending) {
        int n = wait_events(events, 256, open_signals);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            char byte;
            if (fd == listener) { welcome(fd); continue; }
            if (fd == STDIN_FILENO) { if (read(fd, &byte, 1) <= 0) ending = 1; continue; }
            if (conns[fd] && events[i].events & EPOLLOUT && flush(conns[fd])) continue;
            if (conns[fd] && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(conns[fd]);
        }
        send_due();
    }
}

static void end_on_signal(int number) { (void)number; ending = 1; }

static sigset_t catch_signals(void) { /* they only arrive while the loop waits; returns the mask to wait with */
    sigset_t ours, before;
    struct sigaction action = {.sa_handler = end_on_signal};
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigprocmask(SIG_BLOCK, &ours, &before);
    sigdelset(&before, SIGTERM);
    sigdelset(&before, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    return before;
}

static void wrong(const char *what) {
    fprintf(stderr, "mockserver: %s\n", what);
    exit(2);
}

static void parse(int argc, char **argv) {
    static const struct option names[] = {{"port", 1, 0, 'p'}, {"ttft-ms", 1, 0, 't'}, {"itl-ms", 1, 0, 'i'}, {"itl-dist", 1, 0, 'd'}, {"phase", 0, 0, 'h'},
        {"tokens-per-event", 1, 0, 'k'}, {"log", 1, 0, 'l'}, {"max-conns", 1, 0, 'm'}, {"die-with-stdin", 0, 0, 's'}, {0, 0, 0, 0}};
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) >= 0; ) {
        if (name == '?') exit(2);
        if (name == 'p') opt.port = atoi(optarg);
        if (name == 't') opt.ttft_ms = atof(optarg);
        if (name == 'i') opt.itl_ms = atof(optarg);
        if (name == 'd') opt.exponential = !strcmp(optarg, "exp");
        if (name == 'd' && !opt.exponential && strcmp(optarg, "fixed")) wrong("--itl-dist is fixed or exp");
        if (name == 'h') opt.phase = 1;
        if (name == 'k') opt.per_event = atoi(optarg);
        if (name == 'l') opt.log = optarg;
        if (name == 'm') opt.max_conns = atol(optarg);
        if (name == 's') opt.die_with_stdin = 1;
    }
    if (optind < argc) wrong("it takes options only");
    if (opt.ttft_ms < 0 || opt.itl_ms < 0) wrong("--ttft-ms and --itl-ms can't be negative");
    if (opt.per_event < 1 || opt.per_event > MAX_PER_EVENT) wrong("--tokens-per-event must be from 1 to 1024");
    if (opt.max_conns < 1 || opt.max_conns > 1000000) wrong("--max-conns must be from 1 to 1000000");
    if (opt.log && strlen(opt.log) > 4096) wrong("--log: the name is too long");
}

static void allow_files(void) { /* as many open files as connections may need, as far as the hard limit goes */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t wanted = opt.max_conns + SPARE_FILES;
    if (limit.rlim_cur < wanted) limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted) opt.max_conns = limit.rlim_cur > SPARE_FILES ? limit.rlim_cur - SPARE_FILES : 1;
}

static int listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 16384)) { perror("mockserver: can't listen"); exit(2); }
    getsockname(fd, (void *)&address, &n);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void watch(int fd) {
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    allow_files();
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    conns = calloc(opt.max_conns + SPARE_FILES, sizeof *conns);
    heap = calloc(opt.max_conns + 1, sizeof *heap);
    if (!conns || !heap) { perror("mockserver"); return 1; }
    sigset_t open_signals = catch_signals();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(opt.port);
    watch(listener);
    if (opt.die_with_stdin) watch(STDIN_FILENO);
    serve(listener, &open_signals);
    if (opt.log && flush_truth()) { perror(opt.log); return 1; }
    return 0;
}
