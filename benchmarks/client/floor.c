/* The floor under every client's CPU: one thread, epoll, keep-alive connections, a stamp a read; no JSON, no report.
 *
 * Build: cc -O2 -o floor floor.c
 * Usage: floor PORT USERS REQUESTS TOKENS FILE
 * USERS connections send REQUESTS requests between them, each the next one when its last answer has ended. FILE gets, for
 * each request, int64s: number (it is also in the header x-request-id: floor-NNNNNNNN), instant before its send, number of
 * reads, then an (instant, SSE events ended) pair a read; instants are CLOCK_MONOTONIC nanoseconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 512
#define LAST_CHUNK "0\r\n\r\n"
#define N_LAST 5

typedef struct {
    int fd;
    int64_t number, sent_ns, n_reads, *reads; /* reads: pairs */
    int64_t room;
    char tail[N_LAST]; /* the last bytes of the answer so far */
} User;

static char request[4096], *digits, buffer[1 << 18];
static size_t n_request;
static int64_t n_started, n_ended, n_requests;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void fail(const char *what) { perror(what); exit(1); }

static void prepare(long n_tokens) {
    char body[1024];
    int n = snprintf(body, sizeof body, "{\"model\":\"mock\",\"messages\":[{\"role\":\"user\",\"content\":\"how much does it cost\"}],"
                     "\"max_tokens\":%ld,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", n_tokens);
    n_request = snprintf(request, sizeof request, "POST /v1/chat/completions HTTP/1.1\r\nhost: mock\r\nx-request-id: floor-00000000\r\n"
                         "content-type: application/json\r\ncontent-length: %d\r\n\r\n%s", n, body);
    digits = strstr(request, "floor-") + 6;
}

static int connected(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail("floor: connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void begin(User *user) {
    char number[9];
    if (n_started == n_requests) return;
    user->number = n_started++;
    user->n_reads = 0;
    snprintf(number, sizeof number, "%08d", (int)user->number);
    memcpy(digits, number, 8);
    user->sent_ns = now_ns();
    if (send(user->fd, request, n_request, MSG_NOSIGNAL) != (ssize_t)n_request) fail("floor: send");
}

static int64_t events_in(const User *user, size_t n) { /* ends of SSE events, one whose end is split over two reads included */
    const char *at = buffer, *end = buffer + n;
    int64_t found = user->n_reads && user->tail[N_LAST - 1] == '\n' && *at == '\n';
    while ((at = memmem(at, end - at, "\n\n", 2))) found++, at += 2;
    return found;
}

static void keep_tail(User *user, size_t n) {
    size_t fresh = n < N_LAST ? n : N_LAST;
    memmove(user->tail, user->tail + fresh, N_LAST - fresh);
    memcpy(user->tail + N_LAST - fresh, buffer + n - fresh, fresh);
}

static void note(User *user, int64_t at_ns, int64_t n_events) {
    if (user->n_reads == user->room) {
        user->room = user->room ? user->room * 2 : 256;
        if (!(user->reads = realloc(user->reads, user->room * 2 * sizeof *user->reads))) fail("floor: memory");
    }
    user->reads[2 * user->n_reads] = at_ns;
    user->reads[2 * user->n_reads++ + 1] = n_events;
}

static void save(const User *user, FILE *file) {
    const int64_t head[] = {user->number, user->sent_ns, user->n_reads};
    fwrite(head, sizeof *head, 3, file);
    fwrite(user->reads, 2 * sizeof *user->reads, user->n_reads, file);
}

static void receive(User *user, FILE *file) {
    ssize_t n = recv(user->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail("floor: the server closed");
    int64_t at_ns = now_ns();
    note(user, at_ns, events_in(user, n));
    keep_tail(user, n);
    if (memcmp(user->tail, LAST_CHUNK, N_LAST)) return;
    n_ended++;
    save(user, file);
    begin(user);
}

int main(int n_given, char **given) {
    if (n_given != 6) return fprintf(stderr, "usage: floor PORT USERS REQUESTS TOKENS FILE\n"), 2;
    int n_users = atoi(given[2]), poll = epoll_create1(0);
    User *users = calloc(n_users, sizeof *users);
    FILE *file = fopen(given[5], "wb");
    struct epoll_event ready[BATCH];
    if (!users || !file) fail("floor");
    n_requests = atol(given[3]);
    prepare(atol(given[4]));
    for (User *user = users; user < users + n_users; user++) {
        struct epoll_event e = {EPOLLIN, {.ptr = user}};
        user->fd = connected(atoi(given[1]));
        epoll_ctl(poll, EPOLL_CTL_ADD, user->fd, &e);
    }
    for (User *user = users; user < users + n_users; user++) begin(user);
    while (n_ended < n_requests) {
        int n = epoll_wait(poll, ready, BATCH, -1);
        for (int i = 0; i < n; i++) receive(ready[i].data.ptr, file);
    }
    return fclose(file) ? 1 : 0;
}
