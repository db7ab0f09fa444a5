/* A mock OpenAI streaming server for client benchmarks: one thread, epoll, constant gaps, so that due times are a queue.
 * Build: gcc -O2 -o mockserver mockserver.c    Usage: mockserver ITL_MS    It prints its port and ends with its parent.
 * Every request gets max_tokens events (ITL_MS 0: as fast as they can be written), usage and [DONE]. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536
#define IN_BYTES 65536
#define HEAD "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
#define FRAME(payload) "data: " payload "\n\n"

typedef struct { int fd, n_in, left, wants_out; char in[IN_BYTES]; char *out; size_t n_out, sent, room; uint64_t due; } Conn;

static Conn *conns[MAX_FD], *queue[MAX_FD];
static unsigned first_due, last_due; /* a ring: gaps are constant, so whoever comes later is due later */
static int epoll_fd;
static uint64_t gap_ns;
static char event[512], tail[1024];
static size_t n_event, n_tail;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static size_t chunk(char *to, const char *data) { return sprintf(to, "%zx\r\n%s\r\n", strlen(data), data); }

static void put(Conn *c, const char *data, size_t n) {
    if (c->n_out + n > c->room) c->out = realloc(c->out, c->room = 2 * (c->n_out + n));
    memcpy(c->out + c->n_out, data, n);
    c->n_out += n;
}

static void drop(Conn *c) {
    for (unsigned i = first_due; i != last_due; i++) if (queue[i % MAX_FD] == c) queue[i % MAX_FD] = NULL;
    close(c->fd);
    conns[c->fd] = NULL;
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
    return 0;
}

static void later(Conn *c, uint64_t from_ns) { /* from the due time, not from now: lateness must not bunch the streams */
    c->due = from_ns + gap_ns;
    queue[last_due++ % MAX_FD] = c;
}

static void start(Conn *c, const char *body) {
    const char *at = strstr(body, "\"max_tokens\":");
    c->left = at ? atoi(at + 13) : 16;
    put(c, HEAD, sizeof HEAD - 1);
    if (gap_ns) { if (flush(c) == 0) later(c, now_ns()); return; }
    while (c->left-- > 0) put(c, event, n_event);
    put(c, tail, n_tail);
    flush(c);
}

static void models(Conn *c) {
    static const char body[] = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"owned_by\":\"mock\"}]}";
    char head[200];
    put(c, head, sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", sizeof body - 1));
    put(c, body, sizeof body - 1);
    flush(c);
}

static void readable(Conn *c) {
    ssize_t n = recv(c->fd, c->in + c->n_in, IN_BYTES - 1 - c->n_in, 0);
    if (n <= 0) { if (n == 0 || errno != EAGAIN) drop(c); return; }
    c->n_in += n;
    c->in[c->n_in] = 0;
    char *end = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "content-length:");
    if (!end || (length && length < end && c->in + c->n_in < end + 4 + atoi(length + 15))) return;
    c->n_in = 0; /* clients here never send a second request before the answer's end */
    if (!strncmp(c->in, "GET", 3)) models(c); else start(c, end + 4);
}

static void welcome(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
    if (fd < 0 || fd >= MAX_FD) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    conns[fd] = calloc(1, sizeof(Conn));
    conns[fd]->fd = fd;
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

static void send_due(void) {
    while (first_due != last_due) {
        Conn *c = queue[first_due % MAX_FD];
        if (c && c->due > now_ns()) return;
        first_due++;
        if (!c) continue;
        put(c, event, n_event);
        if (--c->left <= 0) put(c, tail, n_tail);
        if (flush(c) == 0 && c->left > 0) later(c, c->due);
    }
}

static struct timespec *wait_for(struct timespec *t) {
    while (first_due != last_due && !queue[first_due % MAX_FD]) first_due++;
    if (first_due == last_due) return NULL;
    uint64_t now = now_ns(), due = queue[first_due % MAX_FD]->due;
    uint64_t left = due > now ? due - now : 0;
    *t = (struct timespec){left / 1000000000, left % 1000000000};
    return t;
}

static void make_events(void) {
    n_event = chunk(event, FRAME("{\"id\":\"chatcmpl-00000000\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\","
        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" the\"},\"logprobs\":null,\"finish_reason\":null}]}"));
    n_tail = chunk(tail, FRAME("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}"));
    n_tail += chunk(tail + n_tail, FRAME("{\"choices\":[],\"usage\":{\"prompt_tokens\":8}}"));
    n_tail += chunk(tail + n_tail, FRAME("[DONE]"));
    n_tail += sprintf(tail + n_tail, "0\r\n\r\n");
}

int main(int argc, char **argv) {
    gap_ns = argc > 1 ? (uint64_t)(atof(argv[1]) * 1e6) : 0;
    make_events();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n_address = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) return 1;
    getsockname(listener, (void *)&address, &n_address);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event e = {EPOLLIN, {.fd = listener}}, events[256];
    epoll_ctl(epoll_fd = epoll_create1(0), EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        struct timespec t;
        int n = epoll_pwait2(epoll_fd, events, 256, wait_for(&t), NULL);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) { welcome(fd); continue; }
            if (conns[fd] && events[i].events & EPOLLOUT && flush(conns[fd])) continue;
            if (conns[fd] && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(conns[fd]);
        }
        send_due();
    }
}
