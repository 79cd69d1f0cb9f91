/* A client of netq in C, in one file: a session that survives its links, messages on 16 lanes, flow control; and a
 * trainer for the federation of examples/digits. It needs libc and libm; with -DNETQ_TLS also OpenSSL, for TLS 1.3.
 *
 * It is written from two pages: docs/reference/protocol.md ("§ 4" is its section 4) and docs/reference/fl-messages.md
 * ("fl § 2"). docs/how-to/c.md says how to use it, and what it leaves out.
 *
 *   1  tools       errors, numbers, clock, random bytes
 *   2  wire        headers of frames
 *   3  session     lanes, cursors and windows: bytes in, bytes out. No socket and no clock
 *   4  link        a TCP connection, or TLS on it
 *   5  client      connects, resumes, keeps the heartbeat: netq_open, netq_put, netq_get, netq_step, netq_close
 *   6  values      JSON and arrays: the messages of fl
 *   7  training    the network of examples/digits/model.py
 *   8  trainer     the conversation with fl.Server
 *   9  commands    send, get, echo, train, bench
 *
 * One thread. The user calls netq_step or netq_get at least once in a heartbeat; all else is done in there.
 */
#define _DEFAULT_SOURCE 1 /* getrandom, getopt_long */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef NETQ_TLS
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

/* ==== 1. Tools ================================================================================================ */

#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

enum { REASON = 256, /* bytes of a reason with its final 0: one line for people */
       LINES = 60 };   /* of these in a minute, at most: what a server does makes some of them */

static void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void warn(const char *format, ...)
{
    static time_t minute;
    static unsigned lines;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec / 60 != minute)
        lines = 0;
    minute = now.tv_sec / 60;
    if (++lines > LINES)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs(lines < LINES ? "netq: " : "netq: (no more lines in this minute) ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* For structures of some hundred bytes: without memory for these nothing can go on. */
static void *allocate(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory) {
        warn("no memory for %zu bytes", size);
        exit(1);
    }
    return memory;
}

/* Numbers on the wire are unsigned and little-endian (§ 1). */
static uint64_t load(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | from[i];
    return value;
}

static void store(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++, value >>= 8)
        to[i] = (uint8_t)value;
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t milliseconds(void)
{
    return nanoseconds() / 1000000;
}

static void random_bytes(void *to, size_t size) /* at most 256, which getrandom never cuts short */
{
    if (getrandom(to, size, 0) != (ssize_t)size) {
        warn("the system has no random bytes: %s", strerror(errno));
        exit(1);
    }
}

/* Reduce text of a peer to one printable line (§ 9). */
static void printable(char *to, size_t room, const uint8_t *from, size_t size)
{
    size_t n = SMALLER(size, room - 1);
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] >= ' ' && from[i] <= '~' ? (char)from[i] : '?';
    to[n] = 0;
}

/* ==== 2. Wire ================================================================================================= */

enum { HEADER = 24, LANES = 16, VERSION = 1, GREETING = 64, CURSOR = 32, COST = 256 /* § 11 */ };

enum kind { INI = 1, MSG, ACK, DROP, PING, FIN };
enum flag { RESUME = 1, LEAVING = 1, ANSWER = 2 };
enum code { DONE, REFUSED, SUPERSEDED, OVER, NO_CODE };

struct header {
    unsigned kind, flags, lane;
    uint32_t length; /* bytes of the body */
    uint64_t number, value;
};

static struct header read_header(const uint8_t *from)
{
    return (struct header){from[0], from[1], (unsigned)load(from + 2, 2), (uint32_t)load(from + 4, 4), load(from + 8, 8),
                           load(from + 16, 8)};
}

static void write_header(uint8_t *to, struct header header)
{
    to[0] = (uint8_t)header.kind;
    to[1] = (uint8_t)header.flags;
    store(to + 2, header.lane, 2);
    store(to + 4, header.length, 4);
    store(to + 8, header.number, 8);
    store(to + 16, header.value, 8);
}

/* ==== 3. Session ==============================================================================================
 *
 * The state that outlives links, and the state of the current link. Bytes that were read go in by session_space and
 * session_received; bytes to write come out by session_output and session_sent. A function that returns false has found
 * a fault, or the end of the link; `error` is one line about it, and the link must be dropped.
 */

enum {
    IN_ROOM = 64 * 1024,  /* bytes read at once */
    OUT_ROOM = 64 * 1024, /* bytes of frames that wait to be written */
    SMALL = 8 * 1024,     /* bodies up to this size are copied between frames; others are written from where they lie */
    CHUNK = 256 * 1024,   /* bytes of a MSG: lanes take turns after each */
    FIRST = 4096 * 1024,  /* bytes allocated for a message that begins; doubled as its bytes arrive */
};
#define LAST_POSITION (((uint64_t)1 << 63) - 1)
#define LARGEST_SIZE (((uint64_t)1 << 62) - 1)

/* Called when a message needs its data no more: the server has it, or it has failed. The data is the callee's. */
typedef void settled_fn(uint8_t *data, bool acknowledged);

struct message {
    struct message *next;
    uint8_t *data;
    uint64_t size;
    int lane;
    settled_fn *settled; /* of a message that is sent */
    uint64_t room;       /* of one that was received: what it takes of its lane's window */
};

struct list {
    struct message *first, **end; /* end: where the link to the next one is to be written */
};

struct place {
    uint64_t number, offset; /* the next byte: of which message, and where in it */
};

struct outgoing { /* a lane, as its sender */
    struct list messages;   /* not acknowledged yet, in order */
    uint64_t held;          /* number of the last one that the server holds */
    uint64_t start_of_first;
    struct message **next;  /* the link to the message that is sent now; *next is NULL if none waits */
    struct place at;        /* the next byte to send */
    uint64_t start;         /* position at which its message starts */
    struct place furthest;  /* how far sending has come in this epoch */
    uint64_t limit;
};

struct incoming { /* a lane, as its receiver */
    uint64_t held;  /* number of the last whole message */
    uint64_t start; /* position of the next one */
    uint8_t *data;  /* of the next one, of which `got` bytes are here; 0: it has not begun */
    uint64_t size, got, capacity;
    uint64_t limit, announced; /* what the server may send, and what it has been told */
    uint64_t unread;           /* room of messages that the user has not taken */
    bool ack;                  /* one is due */
};

struct session {
    /* fixed */
    uint8_t id[16], token[16];
    uint64_t window, message_size; /* bytes: of unread messages in a lane; of the largest message that is accepted */
    uint32_t heartbeat;            /* milliseconds */
    /* outlives links */
    uint32_t epoch; /* 0: no INI was ever received */
    uint8_t server[16];
    uint64_t peer_message_size;
    uint32_t peer_heartbeat;
    struct outgoing out[LANES];
    struct incoming in[LANES];
    struct list ready;  /* whole messages that the user has not taken */
    uint64_t unsettled; /* messages that wait, or are on their way ... */
    uint64_t unsettled_bytes; /* ... and their bytes */
    uint64_t lost;      /* messages that had begun to travel when a server forgot the session */
    bool closing;       /* the user has closed */
    bool closed;        /* both have sent FIN(DONE): the session is over */
    /* of the link */
    bool greeted, said_fin, heard_fin, said_leaving, ping, answer;
    uint64_t ping_number, answer_number;
    enum code farewell; /* of the server's FIN that has ended the link; else NO_CODE */
    unsigned turn;      /* lane that sends next */
    char error[REASON];
    struct header header; /* of the frame that arrives */
    bool in_body;
    uint32_t body_left;
    bool straight; /* the last space was in the message itself */
    size_t in_begin, in_end, out_begin, out_end;
    const uint8_t *tail; /* bytes of a message to write after those in output */
    size_t tail_left;
    unsigned tail_lane;
    uint64_t tail_number;
    uint8_t input[IN_ROOM], output[OUT_ROOM];
};

static bool fault(struct session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fault(struct session *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->error, sizeof s->error, format, arguments);
    va_end(arguments);
    return false;
}

static void append(struct list *list, struct message *message)
{
    message->next = NULL;
    *list->end = message;
    list->end = &message->next;
}

static bool before(struct place a, struct place b)
{
    return a.number < b.number || (a.number == b.number && a.offset < b.offset);
}

static void settle(struct session *s, struct message *message, bool acknowledged)
{
    s->unsettled--;
    s->unsettled_bytes -= message->size;
    if (message->settled)
        message->settled(message->data, acknowledged);
    free(message);
}

/* ---- Receiving: windows ---- */

/* Move the limit to where it has to be by now (§ 5): a window beyond what the user has taken, and the end of a message
 * that has begun. A DROP counts as taken. The user of a session that closes takes no more, so all may come: on lanes in
 * use; on the others a credit may. */
static void move_limit(struct session *s, struct incoming *in)
{
    uint64_t limit = in->start - in->unread + s->window;
    if (in->got)
        limit = LARGER(limit, in->start + in->size);
    if (s->closing && (in->held || in->got))
        limit = LAST_POSITION;
    in->limit = LARGER(in->limit, limit);
}

static bool ack_due(const struct session *s, const struct incoming *in)
{
    bool waits = in->got && in->start + in->size > in->announced;
    return in->ack || (in->limit > in->announced && (waits || in->limit - in->announced >= s->window / 4));
}

/* ---- Sending ---- */

static void write_empty(struct session *s, struct header header)
{
    write_header(s->output + s->out_end, header);
    s->out_end += HEADER;
}

static void write_frame(struct session *s, struct header header, const void *body)
{
    write_empty(s, header);
    memcpy(s->output + s->out_end, body, header.length);
    s->out_end += header.length;
}

static void write_fin(struct session *s, enum code code, const char *reason)
{
    uint32_t length = (uint32_t)SMALLER(strlen(reason), 256);
    write_frame(s, (struct header){.kind = FIN, .length = length, .number = code}, reason);
}

/* INI (§ 3). A lane that is as a new one would be is left out. */
static void write_greeting(struct session *s)
{
    uint8_t body[GREETING + LANES * CURSOR] = "NETQ";
    unsigned cursors = 0;
    for (unsigned lane = 0; lane < LANES; lane++) {
        struct incoming *in = &s->in[lane];
        in->announced = in->limit;
        in->ack = false;
        if (!s->epoch || (!in->held && !in->got && in->limit == s->window))
            continue;
        uint8_t *cursor = body + GREETING + CURSOR * cursors++;
        store(cursor, lane, 2);
        store(cursor + 8, in->held, 8);
        store(cursor + 16, in->got, 8);
        store(cursor + 24, in->limit, 8);
    }
    store(body + 4, VERSION, 2);
    store(body + 6, cursors, 2);
    memcpy(body + 8, s->id, 16);
    memcpy(body + 24, s->token, 16);
    store(body + 40, s->message_size, 8);
    store(body + 48, s->window, 8); /* the credit */
    store(body + 56, s->heartbeat, 4);
    store(body + 60, s->epoch, 4);
    struct header header = {.kind = INI, .flags = s->epoch ? RESUME : 0, .length = GREETING + CURSOR * cursors};
    write_frame(s, header, body);
}

/* Take messages off the lane that this server would never accept. They have not begun, so they need no DROP. */
static void discard_too_large(struct session *s, struct outgoing *o)
{
    struct message *m;
    while ((m = *o->next) && m->size > s->peer_message_size && !before(o->at, o->furthest) && !o->at.offset) {
        warn("a message of %" PRIu64 " bytes is not sent: the server accepts %" PRIu64 " (its message_size)", m->size,
             s->peer_message_size);
        *o->next = m->next;
        if (!m->next)
            o->messages.end = o->next;
        settle(s, m, false);
    }
}

/* Write the next chunk of a lane, if its limit allows a byte. */
static bool write_chunk(struct session *s, unsigned lane)
{
    struct outgoing *o = &s->out[lane];
    discard_too_large(s, o);
    struct message *m = *o->next;
    uint64_t position = o->start + o->at.offset;
    if (!m || position >= o->limit)
        return false;
    uint64_t left = m->size - o->at.offset, n = SMALLER(SMALLER(left, CHUNK), o->limit - position);
    struct header header = {MSG, 0, lane, (uint32_t)n, o->at.number, m->size};
    if (!n) {
        write_empty(s, header);
    } else if (n <= SMALL) {
        write_frame(s, header, m->data + o->at.offset);
    } else {
        write_empty(s, header);
        s->tail = m->data + o->at.offset;
        s->tail_left = n;
        s->tail_lane = lane;
        s->tail_number = o->at.number;
    }
    o->at.offset += n;
    if (o->at.offset == m->size) {
        o->start += m->size + COST;
        o->at = (struct place){o->at.number + 1, 0};
        o->next = &m->next;
    }
    if (before(o->furthest, o->at))
        o->furthest = o->at;
    return true;
}

static bool write_next_chunk(struct session *s)
{
    for (unsigned i = 0; i < LANES; i++) {
        unsigned lane = (s->turn + i) % LANES;
        if (write_chunk(s, lane)) {
            s->turn = lane + 1;
            return true;
        }
    }
    return false;
}

/* What a side that closes sends once: FIN when all is acknowledged; until then LEAVING, if messages wait (§ 9). */
static void write_ending(struct session *s)
{
    if (!s->unsettled && !s->said_fin) {
        write_fin(s, DONE, "");
        s->said_fin = true;
        s->closed = s->heard_fin;
    }
    for (unsigned lane = 0; lane < LANES && !s->said_leaving && s->unsettled; lane++)
        if (*s->out[lane].next && s->out[lane].start + s->out[lane].at.offset >= s->out[lane].limit) {
            write_empty(s, (struct header){.kind = PING, .flags = LEAVING, .number = s->ping_number});
            s->said_leaving = true;
        }
}

/* Write frames into `output` while there is room for them; the first without copying ends it. */
static void fill(struct session *s)
{
    if (s->out_begin == s->out_end)
        s->out_begin = s->out_end = 0;
    if (!s->greeted || s->tail_left || s->out_end + 1024 > OUT_ROOM)
        return;
    for (unsigned lane = 0; lane < LANES; lane++) {
        struct incoming *in = &s->in[lane];
        if (ack_due(s, in)) {
            write_empty(s, (struct header){ACK, 0, lane, 0, in->held, in->limit});
            in->announced = in->limit;
            in->ack = false;
        }
    }
    if (s->answer)
        write_empty(s, (struct header){.kind = PING, .flags = ANSWER, .number = s->answer_number});
    if (s->ping)
        write_empty(s, (struct header){.kind = PING, .number = s->ping_number});
    s->answer = s->ping = false;
    while (!s->tail_left && s->out_end + HEADER + SMALL + 1024 <= OUT_ROOM && write_next_chunk(s))
        ;
    if (s->closing && !s->tail_left)
        write_ending(s);
}

/* Return the bytes to write now, as one or two pieces; 0: there is nothing to write. */
static int session_output(struct session *s, struct iovec pieces[2])
{
    fill(s);
    int count = 0;
    if (s->out_begin < s->out_end)
        pieces[count++] = (struct iovec){s->output + s->out_begin, s->out_end - s->out_begin};
    if (s->tail_left)
        pieces[count++] = (struct iovec){(void *)(uintptr_t)s->tail, s->tail_left};
    return count;
}

static void session_sent(struct session *s, size_t bytes)
{
    size_t n = SMALLER(bytes, s->out_end - s->out_begin);
    s->out_begin += n;
    if (s->tail_left) {
        s->tail += bytes - n;
        s->tail_left -= bytes - n;
    }
}

static bool output_is_empty(const struct session *s)
{
    return s->out_begin == s->out_end && !s->tail_left;
}

/* ---- Beginning, and resuming ---- */

static void session_init(struct session *s)
{
    random_bytes(s->token, sizeof s->token);
    s->ready.end = &s->ready.first;
    for (int lane = 0; lane < LANES; lane++) {
        struct outgoing *o = &s->out[lane];
        o->messages.end = o->next = &o->messages.first;
        o->at = o->furthest = (struct place){1, 0};
        s->in[lane].limit = s->window;
    }
}

/* Begin a link: forget what belonged to the one before, and write INI. What has arrived of a message is kept. */
static void session_open(struct session *s)
{
    s->greeted = s->said_fin = s->heard_fin = s->said_leaving = s->ping = s->answer = s->in_body = s->straight = false;
    s->in_begin = s->in_end = s->out_begin = s->out_end = s->tail_left = 0;
    s->header = (struct header){0};
    s->farewell = NO_CODE;
    write_greeting(s);
}

struct cursor {
    uint64_t held, partial, limit;
};

/* Read the cursors of an INI. A lane without one has the state of a new lane. */
static bool read_cursors(struct session *s, const uint8_t *body, uint32_t length, struct cursor *cursors)
{
    unsigned count = (unsigned)load(body + 6, 2);
    if (count > LANES || length != GREETING + CURSOR * count)
        return fault(s, "an INI of %" PRIu32 " bytes with %u cursors: expected 64 bytes and 32 for each", length, count);
    for (int lane = 0; lane < LANES; lane++)
        cursors[lane] = (struct cursor){0, 0, load(body + 48, 8)};
    int last = -1;
    for (const uint8_t *at = body + GREETING; count--; at += CURSOR) {
        int lane = (int)load(at, 2);
        if (lane <= last || lane >= LANES || load(at + 2, 6))
            return fault(s, "a cursor of lane %d in an INI: expected rising lanes up to 15, and zeros behind them", lane);
        cursors[lane] = (struct cursor){load(at + 8, 8), load(at + 16, 8), load(at + 24, 8)};
        last = lane;
    }
    return true;
}

/* Whether the server can be where its cursor says: not before what it has acknowledged, nor beyond what was sent. */
static bool possible(const struct outgoing *o, struct cursor cursor)
{
    if (cursor.held < o->held || cursor.held >= o->furthest.number)
        return false;
    struct place place = {cursor.held + 1, cursor.partial};
    if (before(o->furthest, place))
        return false;
    if (!cursor.partial)
        return true;
    const struct message *m = o->messages.first;
    for (uint64_t number = o->held; number < cursor.held; number++)
        m = m->next;
    return cursor.partial < m->size;
}

static void settle_first(struct session *s, struct outgoing *o, bool acknowledged)
{
    struct message *m = o->messages.first;
    o->messages.first = m->next;
    if (!m->next)
        o->messages.end = &o->messages.first;
    if (o->next == &m->next)
        o->next = &o->messages.first;
    o->held++;
    o->start_of_first += m->size + COST;
    settle(s, m, acknowledged);
}

/* Go on at the server's cursor, also in the middle of a message. */
static void resume(struct session *s, struct outgoing *o, struct cursor cursor)
{
    while (o->held < cursor.held)
        settle_first(s, o, true);
    o->next = &o->messages.first;
    o->at = (struct place){cursor.held + 1, cursor.partial};
    o->start = o->start_of_first;
    o->limit = cursor.limit;
}

/* The server has begun the session: all lanes start at message 1. Messages that had begun to travel to an earlier
 * server may have arrived there. They fail, and are not sent again (§ 3). */
static void begin(struct session *s, uint64_t credit)
{
    uint64_t lost = 0;
    for (int lane = 0; lane < LANES; lane++) {
        struct outgoing *o = &s->out[lane];
        while (before((struct place){o->held + 1, 0}, o->furthest)) {
            settle_first(s, o, false);
            lost++;
        }
        o->held = o->start_of_first = o->start = 0;
        o->next = &o->messages.first;
        o->at = o->furthest = (struct place){1, 0};
        o->limit = credit;
        struct incoming *in = &s->in[lane];
        free(in->data);
        *in = (struct incoming){.limit = s->window, .announced = s->window};
        move_limit(s, in);
    }
    for (struct message *m = s->ready.first; m; m = m->next)
        m->room = 0; /* of an earlier epoch: it is in nobody's window */
    if (lost)
        warn("the server has begun the session anew: %" PRIu64 " messages may not have arrived", lost);
    s->lost += lost;
}

/* Read the server's INI, check all of it, and only then change anything. */
static bool greet(struct session *s, const uint8_t *body, uint32_t length, bool resumes)
{
    if (memcmp(body, "NETQ", 4))
        return fault(s, "the peer is not netq: expected an INI that begins with NETQ");
    if (load(body + 4, 2) != VERSION)
        return fault(s, "the server speaks version %u of the protocol, expected version %d: update the older side",
                     (unsigned)load(body + 4, 2), VERSION);
    struct cursor cursors[LANES];
    if (length < GREETING)
        return fault(s, "an INI of %" PRIu32 " bytes: expected at least 64", length);
    uint64_t message_size = load(body + 40, 8), credit = load(body + 48, 8);
    uint32_t heartbeat = (uint32_t)load(body + 56, 4), epoch = (uint32_t)load(body + 60, 4);
    if (!message_size || !credit || !heartbeat || epoch == UINT32_MAX)
        return fault(s, "an INI with a message_size, credit or heartbeat of 0, or the last epoch: expected others");
    if (!read_cursors(s, body, length, cursors))
        return false;
    if (resumes) {
        if (!s->epoch || epoch != s->epoch || memcmp(s->server, body + 8, 16))
            return fault(s, "an INI that resumes epoch %" PRIu32 ": expected %" PRIu32 " of the same server", epoch,
                         s->epoch);
        for (int lane = 0; lane < LANES; lane++)
            if (!possible(&s->out[lane], cursors[lane]))
                return fault(s, "an impossible cursor of lane %d: expected one between what is acknowledged and sent",
                             lane);
        for (int lane = 0; lane < LANES; lane++)
            resume(s, &s->out[lane], cursors[lane]);
    } else {
        if (epoch != s->epoch + 1)
            return fault(s, "an INI that begins epoch %" PRIu32 ": expected %" PRIu32, epoch, s->epoch + 1);
        begin(s, credit);
        s->epoch = epoch;
        memcpy(s->server, body + 8, 16);
    }
    s->peer_message_size = message_size;
    s->peer_heartbeat = heartbeat;
    s->greeted = true;
    return true;
}

/* ---- Receiving: frames ---- */

/* Whether this kind of frame may come now (§ 7). */
static bool legal(const struct session *s, unsigned kind)
{
    if (!s->greeted)
        return kind == INI || kind == FIN;
    if (s->heard_fin)
        return kind == ACK || kind == PING || kind == FIN;
    return kind != INI;
}

static bool flags_fit(struct header h)
{
    return h.kind == INI ? h.flags <= RESUME : h.kind == PING ? h.flags <= ANSWER : h.flags == 0;
}

static bool length_fits(struct header h)
{
    switch (h.kind) {
    case MSG:
        return true;
    case INI:
        return h.length >= 8 && h.length <= GREETING + LANES * CURSOR;
    case FIN:
        return h.length <= (h.number == DONE ? 0 : 256);
    default:
        return h.length == 0;
    }
}

/* A MSG continues its lane exactly, within what it announced and what it was granted (§ 4, § 5). */
static bool check_msg(struct session *s, struct header h)
{
    struct incoming *in = &s->in[h.lane];
    if (h.number != in->held + 1 || (in->got && h.value != in->size))
        return fault(s, "a MSG of message %" PRIu64 ", %" PRIu64 " bytes: expected message %" PRIu64 " to go on", h.number,
                     h.value, in->held + 1);
    if (h.value > s->message_size || h.value > LARGEST_SIZE)
        return fault(s, "a message of %" PRIu64 " bytes: expected at most %" PRIu64 " (message_size)", h.value,
                     s->message_size);
    if (h.length > h.value - in->got || (!h.length && h.value))
        return fault(s, "a MSG with %" PRIu32 " bytes: expected 1 to %" PRIu64, h.length, h.value - in->got);
    uint64_t end = in->start + in->got + h.length;
    if (end > in->announced || in->start >= in->announced || in->start + h.value + COST > LAST_POSITION)
        return fault(s, "a MSG up to position %" PRIu64 ": expected at most %" PRIu64, end, in->announced);
    in->size = h.value;
    return true;
}

static bool check_drop(struct session *s, struct header h)
{
    const struct incoming *in = &s->in[h.lane];
    bool fits = h.number == in->held + 1 && h.value <= LARGEST_SIZE && in->start + h.value + COST <= LAST_POSITION;
    if (!fits || (in->got && h.value != in->size))
        return fault(s, "a DROP of message %" PRIu64 ", %" PRIu64 " bytes: expected message %" PRIu64, h.number, h.value,
                     in->held + 1);
    return true;
}

/* The last message that was sent whole: one whose bytes are still being written is not. */
static uint64_t sent_whole(const struct session *s, unsigned lane)
{
    return s->tail_left && s->tail_lane == lane ? s->tail_number - 1 : s->out[lane].at.number - 1;
}

static bool check_header(struct session *s, struct header h)
{
    if (h.kind < INI || h.kind > FIN || h.lane >= LANES || (h.lane && (h.kind == INI || h.kind >= PING)) || !flags_fit(h))
        return fault(s, "a frame of kind %u, flags %u, lane %u: expected one of the protocol", h.kind, h.flags, h.lane);
    if (!legal(s, h.kind) || (h.kind == FIN && h.number == DONE && (!s->greeted || s->heard_fin)))
        return fault(s, "a frame of kind %u now: expected another (section 7 of the protocol)", h.kind);
    if (!length_fits(h))
        return fault(s, "a frame of kind %u with %" PRIu32 " bytes: expected another length", h.kind, h.length);
    if (h.kind == MSG)
        return check_msg(s, h);
    if (h.kind == DROP)
        return check_drop(s, h);
    if (h.kind == ACK && h.number > sent_whole(s, h.lane))
        return fault(s, "an ACK of message %" PRIu64 " of lane %u: expected at most %" PRIu64, h.number, h.lane,
                     sent_whole(s, h.lane));
    if (h.kind == FIN && h.number > OVER)
        return fault(s, "a FIN with code %" PRIu64 ": expected 0 to 3", h.number);
    return true;
}

/* The next message of a lane is whole, or dropped: it counts as received. */
static void count_received(struct session *s, struct incoming *in, uint64_t size)
{
    in->held++;
    in->start += size + COST;
    in->got = 0;
    in->ack = true;
    move_limit(s, in);
}

static void finish_message(struct session *s, unsigned lane)
{
    struct incoming *in = &s->in[lane];
    struct message *m = allocate(sizeof *m);
    *m = (struct message){.data = in->size ? in->data : NULL, .size = in->size, .lane = (int)lane, .room = in->size + COST};
    append(&s->ready, m);
    if (in->size) {
        in->data = NULL;
        in->capacity = 0;
    }
    in->unread += m->room;
    count_received(s, in, m->size);
}

static void drop_message(struct session *s, struct header h)
{
    struct incoming *in = &s->in[h.lane];
    free(in->data);
    in->data = NULL;
    in->capacity = 0;
    count_received(s, in, h.value);
}

static bool finish_fin(struct session *s, struct header h, const uint8_t *reason)
{
    static const char *const names[] = {"done", "refused", "superseded", "session over"};
    if (h.number == DONE) {
        s->heard_fin = true;
        s->closed = s->said_fin;
        return true;
    }
    char line[REASON];
    printable(line, sizeof line, reason, h.length);
    s->farewell = (enum code)h.number;
    return fault(s, "%s by the server: %.200s", names[h.number], h.length ? line : "no reason given");
}

static bool finish_frame(struct session *s, const uint8_t *body)
{
    struct header h = s->header;
    struct outgoing *o = &s->out[h.lane];
    switch (h.kind) {
    case INI:
        return greet(s, body, h.length, h.flags & RESUME);
    case MSG:
        if (s->in[h.lane].got == h.value)
            finish_message(s, h.lane);
        return true;
    case ACK:
        while (o->held < h.number)
            settle_first(s, o, true);
        o->limit = LARGER(o->limit, h.value);
        return true;
    case DROP:
        drop_message(s, h);
        return true;
    case PING:
        if (h.flags != ANSWER) {
            s->answer = true;
            s->answer_number = h.number;
        }
        return true;
    default:
        return finish_fin(s, h, body);
    }
}

/* Make room for bytes of the message that arrives: what it announces is not allocated before it comes (§ 10). */
static bool grow(struct session *s, struct incoming *in)
{
    if (in->got < in->capacity)
        return true;
    uint64_t capacity = SMALLER(in->size, LARGER(FIRST, in->got * 2));
    uint8_t *data = capacity <= SIZE_MAX ? realloc(in->data, capacity) : NULL;
    if (!data)
        return fault(s, "no memory for a message of %" PRIu64 " bytes", in->size);
    in->data = data;
    in->capacity = capacity;
    return true;
}

static void count_bytes(struct session *s, struct incoming *in, size_t bytes)
{
    bool begins = !in->got;
    in->got += bytes;
    s->body_left -= (uint32_t)bytes;
    if (begins)
        move_limit(s, in);
}

/* Move bytes of the message's body from `input`. */
static bool take_body(struct session *s)
{
    struct incoming *in = &s->in[s->header.lane];
    while (s->body_left && s->in_begin < s->in_end) {
        if (!grow(s, in))
            return false;
        size_t n = SMALLER(SMALLER(s->body_left, s->in_end - s->in_begin), in->capacity - in->got);
        memcpy(in->data + in->got, s->input + s->in_begin, n);
        s->in_begin += n;
        count_bytes(s, in, n);
    }
    return true;
}

/* Process what has arrived, frame by frame. */
static bool advance(struct session *s)
{
    while (!s->closed) {
        if (!s->in_body) {
            if (s->in_end - s->in_begin < HEADER)
                return true;
            s->header = read_header(s->input + s->in_begin);
            s->in_begin += HEADER;
            if (!check_header(s, s->header))
                return false;
            s->in_body = true;
            s->body_left = s->header.length;
        }
        const uint8_t *body = s->input + s->in_begin;
        if (s->header.kind == MSG) {
            if (!take_body(s))
                return false;
        } else if (s->in_end - s->in_begin >= s->body_left) {
            s->in_begin += s->body_left;
            s->body_left = 0;
        }
        if (s->body_left)
            return true;
        s->in_body = false;
        if (!finish_frame(s, body))
            return false;
    }
    return true;
}

/* Return where to read the next bytes to, and how many: into a large message itself, else into `input`. */
static bool session_space(struct session *s, uint8_t **to, size_t *room)
{
    struct incoming *in = &s->in[s->header.lane];
    s->straight = s->in_body && s->header.kind == MSG && s->in_begin == s->in_end && s->body_left > SMALL;
    if (s->straight) {
        if (!grow(s, in))
            return false;
        *to = in->data + in->got;
        *room = SMALLER(s->body_left, in->capacity - in->got);
        return true;
    }
    memmove(s->input, s->input + s->in_begin, s->in_end - s->in_begin);
    s->in_end -= s->in_begin;
    s->in_begin = 0;
    *to = s->input + s->in_end;
    *room = IN_ROOM - s->in_end;
    return true;
}

static bool session_received(struct session *s, size_t bytes)
{
    if (s->straight)
        count_bytes(s, &s->in[s->header.lane], bytes);
    else
        s->in_end += bytes;
    return advance(s);
}

/* ---- For the user ---- */

static void session_put(struct session *s, unsigned lane, uint8_t *data, uint64_t size, settled_fn *settled)
{
    struct message *m = allocate(sizeof *m);
    *m = (struct message){.data = data, .size = size, .lane = (int)lane, .settled = settled};
    struct outgoing *o = &s->out[lane];
    append(&o->messages, m);
    s->unsettled++;
    s->unsettled_bytes += size;
}

static struct message *session_get(struct session *s)
{
    struct message *m = s->ready.first;
    if (!m)
        return NULL;
    s->ready.first = m->next;
    if (!m->next)
        s->ready.end = &s->ready.first;
    s->in[m->lane].unread -= m->room;
    move_limit(s, &s->in[m->lane]);
    return m;
}

static void session_close(struct session *s)
{
    s->closing = true;
    for (int lane = 0; lane < LANES; lane++)
        move_limit(s, &s->in[lane]);
}

static void free_message(struct message *m)
{
    free(m->data);
    free(m);
}

static void session_free(struct session *s)
{
    struct message *m;
    while ((m = session_get(s)))
        free_message(m);
    for (int lane = 0; lane < LANES; lane++) {
        while (s->out[lane].messages.first)
            settle_first(s, &s->out[lane], false);
        free(s->in[lane].data);
    }
}

/* ==== 4. Link =================================================================================================
 *
 * A connection that never blocks. The functions return -1 when it is lost, with one line in `error`.
 */

struct link {
    int fd; /* -1: there is none */
    bool wants_write;
    char error[REASON];
#ifdef NETQ_TLS
    SSL *tls;
#endif
};

struct credentials { /* PEM files; NULL: without TLS */
    const char *authority, *certificate, *key;
};

static int link_fault(struct link *l, const char *what, const char *why)
{
    snprintf(l->error, sizeof l->error, "%s: %s", what, why);
    return -1;
}

static bool must_wait(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == EINPROGRESS;
}

static int link_connect(struct link *l, const struct addrinfo *address)
{
    int on = 1;
    l->wants_write = true;
    l->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return link_fault(l, "no socket", strerror(errno));
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(l->fd, address->ai_addr, address->ai_addrlen) && !must_wait())
        return link_fault(l, "cannot connect", strerror(errno));
    return 0;
}

#ifdef NETQ_TLS

/* Return what OpenSSL wants, or -1 with the reason. */
static int tls_result(struct link *l, int result)
{
    int error = SSL_get_error(l->tls, result);
    l->wants_write = error == SSL_ERROR_WANT_WRITE;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return 0;
    unsigned long code = ERR_get_error();
    long verified = SSL_get_verify_result(l->tls);
    if (verified != X509_V_OK)
        return link_fault(l, "the server's certificate is not accepted", X509_verify_cert_error_string(verified));
    const char *why = code ? ERR_reason_error_string(code) : NULL;
    return link_fault(l, "TLS", why ? why : "the server has closed the connection");
}

static SSL_CTX *tls_context(const struct credentials *files)
{
    if (!files->authority)
        return NULL;
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    bool works = context && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) &&
                 SSL_CTX_load_verify_locations(context, files->authority, NULL);
    if (works && files->certificate)
        works = SSL_CTX_use_certificate_chain_file(context, files->certificate) == 1 &&
                SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILETYPE_PEM) == 1;
    if (!works) {
        warn("TLS cannot be used: expected PEM files of the authority, the certificate and its key");
        exit(2);
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL); /* it and set_mode cannot fail */
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

/* Put TLS on a link, before its first byte. The link of a client with an authority has TLS, or fails. */
static int tls_begin(struct link *l, SSL_CTX *context, const char *host)
{
    uint8_t address[16];
    bool is_name = inet_pton(AF_INET, host, address) != 1 && inet_pton(AF_INET6, host, address) != 1;
    l->tls = SSL_new(context);
    X509_VERIFY_PARAM *checks = l->tls ? SSL_get0_param(l->tls) : NULL;
    bool works = checks && SSL_set_fd(l->tls, l->fd) == 1;
    if (works && is_name)
        works = SSL_set_tlsext_host_name(l->tls, host) == 1 && X509_VERIFY_PARAM_set1_host(checks, host, 0) == 1;
    else if (works)
        works = X509_VERIFY_PARAM_set1_ip_asc(checks, host) == 1;
    if (!works)
        return link_fault(l, "TLS", "it cannot be prepared: no memory, or no name that a certificate can be checked for");
    X509_VERIFY_PARAM_set_hostflags(checks, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT); /* the common name is no host's */
    SSL_set_connect_state(l->tls);
    return 0;
}
#endif

/* Go on with connecting. Returns 1 when the link can carry bytes, 0 while it cannot. */
static int link_establish(struct link *l)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
        return link_fault(l, "cannot connect", strerror(error ? error : errno));
    l->wants_write = false;
#ifdef NETQ_TLS
    if (l->tls) {
        int result = SSL_do_handshake(l->tls);
        bool verified = SSL_get_verify_result(l->tls) == X509_V_OK;
        return result == 1 && verified ? 1 : tls_result(l, SMALLER(result, 0));
    }
#endif
    return 1;
}

/* Return how many bytes were read, 0 for none now. */
static ssize_t link_read(struct link *l, uint8_t *to, size_t room)
{
#ifdef NETQ_TLS
    if (l->tls) {
        l->wants_write = false;
        int n = SSL_read(l->tls, to, (int)SMALLER(room, INT_MAX));
        return n > 0 ? n : tls_result(l, n);
    }
#endif
    ssize_t n = recv(l->fd, to, room, 0);
    if (n > 0)
        return n;
    if (n < 0 && must_wait())
        return 0;
    return link_fault(l, "the link was lost", n ? strerror(errno) : "the server has closed the connection");
}

/* Return how many bytes were written, 0 for none now. */
static ssize_t link_write(struct link *l, struct iovec *pieces, int count)
{
#ifdef NETQ_TLS
    if (l->tls) {
        l->wants_write = false;
        int n = SSL_write(l->tls, pieces[0].iov_base, (int)SMALLER(pieces[0].iov_len, INT_MAX));
        return n > 0 ? n : tls_result(l, n);
    }
#endif
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    ssize_t n = sendmsg(l->fd, &message, MSG_NOSIGNAL);
    if (n >= 0 || must_wait())
        return LARGER(n, 0);
    return link_fault(l, "the link was lost", strerror(errno));
}

/* Whether bytes wait here for which poll would not wake us. */
static bool link_pending(const struct link *l)
{
#ifdef NETQ_TLS
    return l->tls && SSL_pending(l->tls);
#else
    (void)l;
    return false;
#endif
}

static void link_close(struct link *l)
{
#ifdef NETQ_TLS
    if (l->tls)
        SSL_shutdown(l->tls);
    SSL_free(l->tls);
    l->tls = NULL;
    ERR_clear_error();
#endif
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    l->wants_write = false;
}

/* ==== 5. Client =============================================================================================== */

enum {
    HANDSHAKE = 10000,  /* milliseconds until INI has come (§ 8) */
    MISSES = 3,         /* heartbeats without a byte */
    FIRST_PAUSE = 100,  /* milliseconds before the next attempt, at most; doubled after each ... */
    LAST_PAUSE = 5000,  /* ... up to this */
    TURN = 16,          /* reads or writes in a row, before the other direction has its turn */
    MINUTE = 60000,
    AHEAD = 4096,           /* messages and ... */
    AHEAD_BYTES = 64 << 20, /* ... bytes that wait for an ACK, until netq_put waits, too */
};

struct options {
    const char *host, *port;
    struct credentials files;
    uint8_t id[16];
    uint64_t window, message_size; /* bytes, as in struct session */
    int64_t heartbeat, patience;   /* milliseconds; patience: without a link, until the session is over */
};

struct client {
    struct options options;
    struct session session;
    struct link link;
    struct addrinfo *addresses, *address; /* of the host, and the one to try next */
    bool established;                     /* the link carries bytes */
    bool full;                            /* it takes no more bytes now */
    bool over;                            /* the session: closed, or ended before that */
    int64_t attempt, opened, heard, sent, lost; /* times in milliseconds */
    int64_t superseded[2];                      /* when it was before */
    unsigned failures;                          /* attempts in a row without an INI */
    char last_error[REASON];                    /* that was shown */
#ifdef NETQ_TLS
    SSL_CTX *tls;
#endif
};

static struct client *netq_open(const struct options *options)
{
    struct client *c = allocate(sizeof *c);
    c->options = *options;
    c->link.fd = -1;
    c->lost = c->attempt = milliseconds();
    c->superseded[0] = c->superseded[1] = -MINUTE;
    memcpy(c->session.id, options->id, 16);
    c->session.window = options->window;
    c->session.message_size = options->message_size;
    c->session.heartbeat = (uint32_t)options->heartbeat;
    session_init(&c->session);
#ifdef NETQ_TLS
    c->tls = tls_context(&options->files);
#endif
    return c;
}

static void end_session(struct client *c, const char *reason)
{
    if (reason)
        warn("%s:%s: %s", c->options.host, c->options.port, reason);
    c->over = true;
    link_close(&c->link);
}

/* The link is gone. The session goes on: another attempt follows after a random pause. */
static void lose_link(struct client *c, const char *why)
{
    int64_t now = milliseconds(), most = SMALLER((int64_t)FIRST_PAUSE << SMALLER(c->failures, 10), LAST_PAUSE);
    uint32_t random;
    random_bytes(&random, sizeof random);
    if (strcmp(c->last_error, why))
        warn("%s:%s: %s; trying again", c->options.host, c->options.port, why);
    snprintf(c->last_error, sizeof c->last_error, "%s", why);
    link_close(&c->link);
    if (c->established && c->session.greeted)
        c->lost = now;
    c->established = false;
    c->failures++;
    c->attempt = now + random % most;
}

/* Tell the server why the link or the session ends; only where a frame may begin. */
static void say_goodbye(struct client *c, enum code code, const char *reason)
{
    struct session *s = &c->session;
    struct iovec piece;
    if (!c->established || !output_is_empty(s))
        return;
    s->out_begin = s->out_end = 0;
    write_fin(s, code, reason);
    piece = (struct iovec){s->output, s->out_end};
    (void)link_write(&c->link, &piece, 1);
}

/* The server has sent FIN with another code than DONE, or something that breaks the protocol. */
static void drop_link(struct client *c)
{
    struct session *s = &c->session;
    int64_t now = milliseconds();
    if (s->farewell == OVER) {
        end_session(c, s->error);
    } else if (s->farewell == SUPERSEDED && now - c->superseded[0] < MINUTE) {
        end_session(c, "superseded three times in a minute: another process has this client's token");
    } else {
        if (s->farewell == NO_CODE)
            say_goodbye(c, REFUSED, s->error);
        lose_link(c, s->error);
    }
    if (s->farewell == SUPERSEDED) {
        c->superseded[0] = c->superseded[1];
        c->superseded[1] = now;
    }
}

static bool resolve(struct client *c)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (c->address && c->address->ai_next) {
        c->address = c->address->ai_next;
        return true;
    }
    if (c->addresses)
        freeaddrinfo(c->addresses);
    c->addresses = NULL;
    int error = getaddrinfo(c->options.host, c->options.port, &hints, &c->addresses);
    c->address = c->addresses;
    if (error)
        lose_link(c, gai_strerror(error));
    return !error;
}

static void open_link(struct client *c)
{
    if (!resolve(c))
        return;
    c->opened = milliseconds();
    int result = link_connect(&c->link, c->address);
#ifdef NETQ_TLS
    if (!result && c->tls)
        result = tls_begin(&c->link, c->tls, c->options.host);
#endif
    if (result < 0)
        lose_link(c, c->link.error);
}

static void establish(struct client *c)
{
    int result = link_establish(&c->link);
    if (result < 0) {
        lose_link(c, c->link.error);
    } else if (result) {
        c->established = true;
        c->heard = c->sent = milliseconds();
        session_open(&c->session);
    }
}

/* After both FIN the session is over, whether or not the last bytes of the link could be written (§ 9). */
static void flush(struct client *c)
{
    struct iovec pieces[2];
    int count;
    c->full = false;
    for (int turn = 0; c->established && (count = session_output(&c->session, pieces)); turn++) {
        ssize_t n = turn < TURN ? link_write(&c->link, pieces, count) : 0;
        if (n < 0 && !c->session.closed)
            lose_link(c, c->link.error);
        c->full = n == 0;
        if (n <= 0)
            break;
        session_sent(&c->session, (size_t)n);
        c->sent = milliseconds();
    }
    if (c->session.closed && !c->full)
        end_session(c, NULL);
}

/* Read once. Returns whether there may be more to read. */
static bool receive_once(struct client *c)
{
    struct session *s = &c->session;
    uint8_t *to;
    size_t room;
    bool greeted = s->greeted;
    bool works = session_space(s, &to, &room);
    ssize_t n = works ? link_read(&c->link, to, room) : 0;
    if (n > 0) {
        c->heard = milliseconds();
        works = session_received(s, (size_t)n);
    }
    if (s->greeted && !greeted) {
        c->failures = 0;
        c->last_error[0] = 0;
    }
    if (!works)
        drop_link(c);
    else if (n < 0 && !s->closed)
        lose_link(c, c->link.error);
    return works && n > 0 && !s->closed && ((size_t)n == room || link_pending(&c->link));
}

static void receive(struct client *c)
{
    for (int turn = 0; turn < TURN && receive_once(c); turn++)
        ;
}

static int64_t silence(const struct client *c)
{
    return MISSES * (int64_t)LARGER(c->session.heartbeat, c->session.peer_heartbeat);
}

/* When the next thing is due, in milliseconds of the clock. */
static int64_t next_due(const struct client *c)
{
    if (c->link.fd < 0)
        return SMALLER(c->attempt, c->lost + c->options.patience);
    if (!c->established || !c->session.greeted)
        return c->opened + HANDSHAKE;
    if (!output_is_empty(&c->session))
        return c->heard + silence(c);
    return SMALLER(c->sent + c->session.heartbeat * 7 / 8, c->heard + silence(c));
}

/* Do what the clock demands (§ 8). */
static void keep_time(struct client *c)
{
    int64_t now = milliseconds();
    if (c->link.fd < 0) {
        if (now >= c->lost + c->options.patience)
            end_session(c, "no link for too long: expected one within the session's timeout");
        else if (now >= c->attempt)
            open_link(c);
    } else if (!c->established || !c->session.greeted) {
        if (now >= c->opened + HANDSHAKE)
            lose_link(c, "no INI of the server within 10 s");
    } else if (now >= c->heard + silence(c)) {
        lose_link(c, "the server is silent: expected something within three heartbeats");
    } else if (now >= c->sent + c->session.heartbeat * 7 / 8 && output_is_empty(&c->session)) {
        c->session.ping = true;
        c->session.ping_number = (uint64_t)nanoseconds();
    }
}

/* Send and receive what can be, and wait up to `timeout` milliseconds (-1: for ever) until something happens. */
static void netq_step(struct client *c, int64_t timeout)
{
    if (c->over)
        return;
    keep_time(c);
    flush(c);
    if (c->over)
        return;
    int64_t due = LARGER(next_due(c) - milliseconds(), 0);
    if (timeout < 0 || due < timeout)
        timeout = due;
    if (link_pending(&c->link))
        timeout = 0;
    struct pollfd wait = {c->link.fd, (short)(POLLIN | (c->full || c->link.wants_write ? POLLOUT : 0)), 0};
    if (poll(&wait, 1, (int)SMALLER(timeout, INT_MAX)) < 0 || c->link.fd < 0)
        return;
    if (!c->established && wait.revents)
        establish(c);
    else if (c->established && (wait.revents & ~POLLOUT || c->link.wants_write || link_pending(&c->link)))
        receive(c);
    flush(c);
}

static volatile sig_atomic_t told_to_stop; /* by a signal */

/* Queue a message. `settled` is called once, and has the data then; until then the data must not change. While AHEAD
 * messages or AHEAD_BYTES wait for the server's ACK, it waits, so a server that acknowledges nothing takes no memory. */
static void netq_put(struct client *c, unsigned lane, uint8_t *data, uint64_t size, settled_fn *settled)
{
    while (!c->over && !told_to_stop && (c->session.unsettled >= AHEAD || c->session.unsettled_bytes >= AHEAD_BYTES))
        netq_step(c, -1);
    session_put(&c->session, lane, data, size, settled);
}

/* Return the next message, or NULL: after `timeout` milliseconds (-1: never), or if none can come any more. The caller
 * frees it by free_message. */
static struct message *netq_get(struct client *c, int64_t timeout)
{
    int64_t end = milliseconds() + timeout, left = timeout;
    struct message *m;
    while (!(m = session_get(&c->session)) && !c->over && !c->session.heard_fin) {
        netq_step(c, left);
        if (timeout >= 0 && (left = end - milliseconds()) <= 0)
            return session_get(&c->session);
    }
    return m;
}

/* End the session in order: wait up to `timeout` milliseconds until all messages are acknowledged and the server has
 * closed too. Returns whether both is so. */
static bool netq_close(struct client *c, int64_t timeout)
{
    int64_t end = milliseconds() + timeout;
    struct message *m;
    session_close(&c->session);
    while (!c->over && milliseconds() < end) {
        netq_step(c, end - milliseconds());
        while ((m = session_get(&c->session)))
            free_message(m);
    }
    bool orderly = c->session.closed && c->over;
    if (!c->over)
        say_goodbye(c, OVER, "the client's user does not wait any longer");
    link_close(&c->link);
    session_free(&c->session);
    if (c->addresses)
        freeaddrinfo(c->addresses);
#ifdef NETQ_TLS
    SSL_CTX_free(c->tls);
#endif
    free(c);
    return orderly;
}

/* ==== 6. Values ===============================================================================================
 *
 * A message of fl is a text in JSON, and buffers (fl § 1). The text is read into a flat array of values, each before
 * its children. Nothing in a message can make the reader take more memory than VALUES values and the text itself.
 */

enum { TEXT = 4194304, BUFFERS = 65536, ALIGNMENT = 64 /* fl § 1 */, VALUES = 65536, DEPTH = 64 /* our limits */ };

enum value_kind { EMPTY, BOOLEAN, NUMBER, STRING, LIST, OBJECT };

struct value {
    enum value_kind kind;
    const char *text; /* of a string, decoded; of the others as it stands */
    size_t length;
    uint32_t count; /* children: the keys of an object are strings before their values */
    uint32_t end;   /* index of the first value behind its last child */
};

struct document {
    char *text; /* a copy, in which strings are decoded in place */
    size_t size, at;
    struct value *values;
    uint32_t count, room;
    const uint8_t *message;
    struct iovec *buffers;
    uint32_t buffer_count;
    char error[REASON];
};

static bool mistake(struct document *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool mistake(struct document *d, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->error, sizeof d->error, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- Reading the text. A 0 stands behind it, which no rule below accepts. ---- */

static void skip_space(struct document *d)
{
    while (d->text[d->at] && strchr(" \t\r\n", d->text[d->at]))
        d->at++;
}

static bool expect(struct document *d, const char *what)
{
    size_t length = strlen(what);
    if (strncmp(d->text + d->at, what, length))
        return mistake(d, "byte %zu of the text: expected %s", d->at, what);
    d->at += length;
    return true;
}

static bool read_hex(struct document *d, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, d->at++) {
        const char *digits = "0123456789abcdefABCDEF", *found = strchr(digits, d->text[d->at]);
        if (!d->text[d->at] || !found)
            return mistake(d, "byte %zu of the text: expected a hexadecimal digit", d->at);
        *code = *code << 4 | (uint32_t)(found - digits - (found - digits > 15 ? 6 : 0));
    }
    return true;
}

/* Read what follows \u, and write it as UTF-8: never more bytes than were read. */
static bool read_unicode(struct document *d, char **to)
{
    uint32_t code, low = 0;
    if (!read_hex(d, &code))
        return false;
    bool high = code >= 0xd800 && code < 0xdc00;
    if (high && !(expect(d, "\\u") && read_hex(d, &low)))
        return false;
    if ((code >= 0xdc00 && code < 0xe000) || (high && (low < 0xdc00 || low >= 0xe000)))
        return mistake(d, "byte %zu of the text: expected both halves of a surrogate pair", d->at);
    if (high)
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    *(*to)++ = (char)(lead[more] | code >> 6 * more);
    while (more--)
        *(*to)++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return true;
}

static bool read_string(struct document *d, struct value *value)
{
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (!expect(d, "\""))
        return false;
    char *to = d->text + d->at;
    value->kind = STRING;
    value->text = to;
    while (d->text[d->at] != '"') {
        char byte = d->text[d->at++];
        if ((uint8_t)byte < ' ')
            return mistake(d, "byte %zu of the text: expected the end of a string", d->at - 1);
        if (byte != '\\') {
            *to++ = byte;
            continue;
        }
        byte = d->text[d->at++];
        const char *found = byte ? strchr(escapes, byte) : NULL;
        if (found)
            *to++ = meanings[found - escapes];
        else if (byte != 'u')
            return mistake(d, "byte %zu of the text: expected an escape of JSON", d->at - 1);
        else if (!read_unicode(d, &to))
            return false;
    }
    d->at++;
    value->length = (size_t)(to - value->text);
    return true;
}

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

static bool read_number(struct document *d, struct value *value)
{
    const char *start = d->text + d->at, *at = start + (*start == '-');
    size_t whole = digits(at);
    bool valid = whole && (*at != '0' || whole == 1);
    at += whole;
    if (*at == '.') {
        valid = valid && digits(at + 1);
        at += 1 + digits(at + 1);
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        valid = valid && digits(at);
        at += digits(at);
    }
    if (!valid)
        return mistake(d, "byte %zu of the text: expected a value of JSON", d->at);
    *value = (struct value){.kind = NUMBER, .text = start, .length = (size_t)(at - start)};
    d->at += value->length;
    return true;
}

static bool read_value(struct document *d, int depth);

static bool read_children(struct document *d, struct value *value, int depth)
{
    bool object = d->text[d->at++] == '{';
    const char *end = object ? "}" : "]";
    value->kind = object ? OBJECT : LIST;
    skip_space(d);
    if (d->text[d->at] == *end)
        return expect(d, end);
    for (;;) {
        skip_space(d);
        if (object && d->text[d->at] != '"')
            return mistake(d, "byte %zu of the text: expected a key", d->at);
        if (!read_value(d, depth + 1))
            return false;
        if (object && !(expect(d, ":") && read_value(d, depth + 1)))
            return false;
        value->count++;
        if (d->text[d->at] != ',')
            return expect(d, end);
        d->at++;
    }
}

static bool read_value(struct document *d, int depth)
{
    if (d->count == d->room || depth > DEPTH)
        return mistake(d, "a text with too many values: expected at most %d, %d deep", VALUES, DEPTH);
    struct value *value = &d->values[d->count++];
    bool works;
    skip_space(d);
    switch (d->text[d->at]) {
    case '{':
    case '[':
        works = read_children(d, value, depth);
        break;
    case '"':
        works = read_string(d, value);
        break;
    case 't':
    case 'f':
        *value = (struct value){.kind = BOOLEAN, .text = d->text + d->at, .length = 1};
        works = expect(d, d->text[d->at] == 't' ? "true" : "false");
        break;
    case 'n':
        works = expect(d, "null");
        break;
    default:
        works = read_number(d, value);
    }
    if (!works)
        return false; /* `at` may be behind the 0 */
    value->end = d->count;
    skip_space(d);
    return true;
}

/* Find the buffers of a message. Nothing but zeros may lie between them, and nothing behind the last. */
static bool find_buffers(struct document *d, uint64_t at, uint64_t size)
{
    for (uint32_t i = 0; i < d->buffer_count; i++) {
        for (; at % ALIGNMENT && at < size; at++)
            if (d->message[at])
                return mistake(d, "byte %" PRIu64 " of a message: expected a 0 before buffer %" PRIu32, at, i);
        uint64_t length = load(d->message + 16 + 8 * (uint64_t)i, 8);
        if (at % ALIGNMENT || length > size - at)
            return mistake(d, "buffer %" PRIu32 " of %" PRIu64 " bytes: expected it to end with the message", i, length);
        d->buffers[i] = (struct iovec){(void *)(uintptr_t)(d->message + at), length};
        at += length;
    }
    return at == size || mistake(d, "a message of %" PRIu64 " bytes: expected %" PRIu64, size, at);
}

static void close_document(struct document *d)
{
    free(d->text);
    free(d->values);
    free(d->buffers);
}

/* Read a message, which must outlive the document. Close the document also if this returns false. */
static bool open_document(struct document *d, const uint8_t *message, uint64_t size)
{
    uint64_t text = size < 16 ? 0 : load(message, 8), buffers = size < 16 ? 0 : load(message + 8, 8);
    *d = (struct document){.message = message};
    if (size < 16 || text > TEXT || buffers > BUFFERS || text + 8 * buffers > size - 16)
        return mistake(d, "a message of %" PRIu64 " bytes with a text of %" PRIu64 " and %" PRIu64 " buffers: expected one of fl",
                       size, text, buffers);
    d->size = text;
    d->text = allocate(text + 1);
    d->room = (uint32_t)SMALLER(text, VALUES);
    d->values = allocate((d->room + 1) * sizeof *d->values);
    d->buffer_count = (uint32_t)buffers;
    d->buffers = allocate((buffers + 1) * sizeof *d->buffers);
    memcpy(d->text, message + 16 + 8 * buffers, text);
    if (!find_buffers(d, 16 + 8 * buffers + text, size) || !read_value(d, 0))
        return false;
    return d->at == d->size || mistake(d, "byte %zu of the text: expected its end", d->at);
}

/* ---- Looking at values ---- */

static const struct value *after(const struct document *d, const struct value *value)
{
    return d->values + value->end;
}

static bool equals(const struct value *value, const char *text)
{
    return value->kind == STRING && value->length == strlen(text) && !memcmp(value->text, text, value->length);
}

/* Return the first value of an object under this key, or NULL. */
static const struct value *member(const struct document *d, const struct value *object, const char *key)
{
    const struct value *at = object + 1;
    for (uint32_t i = 0; object->kind == OBJECT && i < object->count; i++, at = after(d, after(d, at)))
        if (equals(at, key))
            return after(d, at);
    return NULL;
}

/* Return an element of a list, or NULL. */
static const struct value *element(const struct document *d, const struct value *list, uint32_t index)
{
    if (!list || list->kind != LIST || index >= list->count)
        return NULL;
    const struct value *at = list + 1;
    while (index--)
        at = after(d, at);
    return at;
}

/* Check that an object has these keys, the first `needed` of them in any case, no other, and none twice. */
static bool check_keys(struct document *d, const struct value *object, int needed, int count, const char *const keys[])
{
    uint32_t found = 0;
    for (int i = 0; i < count; i++) {
        bool there = member(d, object, keys[i]);
        if (i < needed && !there)
            return mistake(d, "an object without \"%s\": expected it", keys[i]);
        found += there;
    }
    return found == object->count || mistake(d, "an object with %" PRIu32 " keys: expected only %" PRIu32 " known ones",
                                             object->count, found);
}

/* Read a whole number of 0 or more. */
static bool as_whole(const struct value *value, uint64_t *to)
{
    if (!value || value->kind != NUMBER || digits(value->text) < value->length)
        return false;
    errno = 0;
    *to = strtoull(value->text, NULL, 10);
    return !errno;
}

/* Read an array of float32 with `rows` rows and `columns` columns; with columns 0 it has one dimension. */
static bool read_floats(struct document *d, const struct value *value, int rows, int columns, float *to)
{
    static const char *const keys[] = {"$array", "$tensor", "$parameter"};
    const struct value *list = NULL;
    for (int i = 0; i < 3 && !list; i++)
        list = member(d, value, keys[i]);
    const struct value *dtype = element(d, list, 1), *shape = element(d, list, 2), *strides = element(d, list, 3);
    uint64_t buffer, height, width = 1, step = (uint64_t)LARGER(columns, 1), stride = 1;
    uint64_t count = (uint64_t)rows * step;
    if (!as_whole(element(d, list, 0), &buffer) || buffer >= d->buffer_count || d->buffers[buffer].iov_len != 4 * count)
        return mistake(d, "an array: expected a buffer of %" PRIu64 " bytes", 4 * count);
    if (!dtype || !(equals(dtype, "<f4") || equals(dtype, "float32")))
        return mistake(d, "an array: expected the dtype <f4");
    if (!shape || shape->count != (columns ? 2 : 1) || !as_whole(element(d, shape, 0), &height) ||
        height != (uint64_t)rows || (columns && (!as_whole(element(d, shape, 1), &width) || width != step)))
        return mistake(d, "an array: expected %d rows and %d columns", rows, columns);
    if (strides && strides->kind != EMPTY &&
        (!as_whole(element(d, strides, 0), &step) || (columns && !as_whole(element(d, strides, 1), &stride)) ||
         step > count || stride > count || (height - 1) * step + (width - 1) * stride >= count))
        return mistake(d, "an array: expected strides within its buffer");
    const uint8_t *data = d->buffers[buffer].iov_base;
    for (uint64_t row = 0; row < height; row++)
        for (uint64_t column = 0; column < width; column++, to++) {
            uint32_t bits = (uint32_t)load(data + 4 * (row * step + column * stride), 4);
            memcpy(to, &bits, 4);
        }
    return true;
}

/* ---- Writing ---- */

/* Return a message of a text and arrays of float32, and its size. */
static uint8_t *compose(const char *text, int arrays, const float *const floats[], const size_t counts[], uint64_t *size)
{
    uint64_t length = strlen(text), at = 16 + 8 * (uint64_t)arrays + length;
    *size = at;
    for (int i = 0; i < arrays; i++)
        *size = (*size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + 4 * counts[i];
    uint8_t *message = allocate(*size);
    store(message, length, 8);
    store(message + 8, (uint64_t)arrays, 8);
    memcpy(message + at - length, text, length);
    for (int i = 0; i < arrays; i++) {
        store(message + 16 + 8 * i, 4 * counts[i], 8);
        at = (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        for (size_t j = 0; j < counts[i]; j++, at += 4) {
            uint32_t bits;
            memcpy(&bits, &floats[i][j], 4);
            store(message + at, bits, 4);
        }
    }
    return message;
}

/* ==== 7. Training =============================================================================================
 *
 * The network of examples/digits/model.py: 64 pixels, 64 hidden units (tanh), 10 digits; minibatch SGD with momentum.
 */

enum { PIXELS = 64, HIDDEN = 64, DIGITS = 10, ROW = PIXELS + 1, BATCH = 32, EPOCHS = 2 };
static const float LEARNING_RATE = 0.1f, MOMENTUM = 0.9f;

struct network {
    float hidden_weight[HIDDEN][PIXELS], hidden_bias[HIDDEN], output_weight[DIGITS][HIDDEN], output_bias[DIGITS];
};
enum { PARAMETERS = sizeof(struct network) / sizeof(float), TENSORS = 4 };

static const struct tensor {
    const char *name;
    int rows, columns; /* columns 0: one dimension */
    size_t offset;     /* bytes in struct network */
} tensors[TENSORS] = {
    {"hidden.weight", HIDDEN, PIXELS, offsetof(struct network, hidden_weight)},
    {"hidden.bias", HIDDEN, 0, offsetof(struct network, hidden_bias)},
    {"output.weight", DIGITS, HIDDEN, offsetof(struct network, output_weight)},
    {"output.bias", DIGITS, 0, offsetof(struct network, output_bias)},
};

struct examples { /* rows of 64 pixels from 0 to 16, and the digit that they show */
    uint8_t *rows;
    size_t count;
};

/* Compute the hidden units and the log of each digit's probability. */
static void forward(const struct network *n, const float *image, float *hidden, float *scores)
{
    float sum = 0, most = -INFINITY;
    for (int i = 0; i < HIDDEN; i++) {
        float input = n->hidden_bias[i];
        for (int j = 0; j < PIXELS; j++)
            input += n->hidden_weight[i][j] * image[j];
        hidden[i] = tanhf(input);
    }
    for (int i = 0; i < DIGITS; i++) {
        scores[i] = n->output_bias[i];
        for (int j = 0; j < HIDDEN; j++)
            scores[i] += n->output_weight[i][j] * hidden[j];
        most = LARGER(most, scores[i]);
    }
    for (int i = 0; i < DIGITS; i++)
        sum += expf(scores[i] - most);
    for (int i = 0; i < DIGITS; i++)
        scores[i] -= most + logf(sum);
}

static void read_image(const uint8_t *row, float *image)
{
    for (int i = 0; i < PIXELS; i++)
        image[i] = (float)row[i] / 16;
}

/* Add the gradient of one example's cross-entropy, divided by the size of its batch. */
static void add_gradient(const struct network *n, const uint8_t *row, size_t batch, struct network *gradient)
{
    float image[PIXELS], hidden[HIDDEN], scores[DIGITS], back[HIDDEN] = {0};
    read_image(row, image);
    forward(n, image, hidden, scores);
    for (int i = 0; i < DIGITS; i++) {
        float slope = (expf(scores[i]) - (i == row[PIXELS] ? 1 : 0)) / (float)batch;
        gradient->output_bias[i] += slope;
        for (int j = 0; j < HIDDEN; j++) {
            gradient->output_weight[i][j] += slope * hidden[j];
            back[j] += slope * n->output_weight[i][j];
        }
    }
    for (int i = 0; i < HIDDEN; i++) {
        float slope = back[i] * (1 - hidden[i] * hidden[i]);
        gradient->hidden_bias[i] += slope;
        for (int j = 0; j < PIXELS; j++)
            gradient->hidden_weight[i][j] += slope * image[j];
    }
}

/* SplitMix64 (Steele et al. 2014): enough to shuffle examples with. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static void shuffle(size_t *order, size_t count, uint64_t *state)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = draw(state) % i, kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

/* Train in place, and call `pause` after each epoch. `seed` decides the order of the examples. */
static void train(struct network *n, const struct examples *e, uint64_t seed, void (*pause)(void *), void *of)
{
    size_t *order = allocate(e->count * sizeof *order);
    struct network gradient, velocity = {0};
    float *weights = (float *)n, *slopes = (float *)&gradient, *speeds = (float *)&velocity;
    for (size_t i = 0; i < e->count; i++)
        order[i] = i;
    for (int epoch = 0; epoch < EPOCHS; epoch++, pause(of)) {
        shuffle(order, e->count, &seed);
        for (size_t start = 0; start < e->count; start += BATCH) {
            size_t batch = SMALLER(BATCH, e->count - start);
            memset(&gradient, 0, sizeof gradient);
            for (size_t i = start; i < start + batch; i++)
                add_gradient(n, e->rows + ROW * order[i], batch, &gradient);
            for (int i = 0; i < PARAMETERS; i++) {
                speeds[i] = MOMENTUM * speeds[i] + slopes[i];
                weights[i] -= LEARNING_RATE * speeds[i];
            }
        }
    }
    free(order);
}

/* Compute the accuracy and the mean loss. */
static void evaluate(const struct network *n, const struct examples *e, double *accuracy, double *loss)
{
    *accuracy = *loss = 0;
    for (const uint8_t *row = e->rows; row < e->rows + ROW * e->count; row += ROW) {
        float image[PIXELS], hidden[HIDDEN], scores[DIGITS];
        int best = 0;
        read_image(row, image);
        forward(n, image, hidden, scores);
        for (int i = 1; i < DIGITS; i++)
            best = scores[i] > scores[best] ? i : best;
        *accuracy += (best == row[PIXELS]) / (double)e->count;
        *loss -= (double)scores[row[PIXELS]] / (double)e->count;
    }
}

/* ==== 8. Trainer ==============================================================================================
 *
 * The conversation with fl.Server (fl § 3): Task, then perhaps Offer and Permit, then Reply; and End.
 */

struct job {
    char run[24], round[24]; /* whole numbers of up to 64 bits, as they came */
    const char *purpose; /* "train", "evaluate", "statistics" or "secure" */
};

struct trainer {
    struct client *client;
    struct examples examples;
    uint8_t *kept; /* a reply that waits for its Permit */
    uint64_t kept_size;
    struct job job;
    bool ended; /* the federation is over */
};

static void free_data(uint8_t *data, bool acknowledged)
{
    (void)acknowledged;
    free(data);
}

static void send_text(struct trainer *t, const char *text)
{
    uint64_t size;
    uint8_t *message = compose(text, 0, NULL, NULL, &size);
    netq_put(t->client, 0, message, size, free_data);
}

static bool copy_number(const struct value *value, char to[24])
{
    if (!value || value->kind != NUMBER || value->length > 20 || strcspn(value->text, ".eE") < value->length)
        return false;
    snprintf(to, 24, "%.*s", (int)value->length, value->text);
    return true;
}

static bool read_job(struct document *d, const struct value *list, struct job *job)
{
    static const char *const purposes[] = {"train", "evaluate", "statistics", "secure"};
    const struct value *purpose = element(d, list, 2);
    job->purpose = NULL;
    for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++)
        if (purpose && list->count == 3 && equals(purpose, purposes[i]))
            job->purpose = purposes[i];
    if (!job->purpose || !copy_number(element(d, list, 0), job->run) || !copy_number(element(d, list, 1), job->round))
        return mistake(d, "a job: expected two whole numbers, and train, evaluate, statistics or secure");
    return true;
}

/* Write the start of a message about a job, up to where its next field begins. Returns the length. */
static int begin_text(char *to, size_t room, const char *type, const struct job *job)
{
    return snprintf(to, room, "{\"type\":\"%s\",\"job\":[%s,%s,\"%s\"],", type, job->run, job->round, job->purpose);
}

static void refuse(struct trainer *t, const char *why)
{
    char text[1024], safe[REASON];
    int n = begin_text(text, sizeof text, "Reply", &t->job);
    printable(safe, sizeof safe, (const uint8_t *)why, strlen(why));
    for (char *at = safe; (at = strpbrk(at, "\"\\"));)
        *at = '\'';
    snprintf(text + n, sizeof text - (size_t)n, "\"content\":\"%s\"}", safe);
    warn("round %s: %s", t->job.round, why);
    send_text(t, text);
}

static bool read_network(struct document *d, const struct value *model, struct network *network)
{
    static const char *const names[TENSORS] = {"hidden.weight", "hidden.bias", "output.weight", "output.bias"};
    if (!model || model->kind != OBJECT || !check_keys(d, model, TENSORS, TENSORS, names))
        return false;
    for (int i = 0; i < TENSORS; i++) {
        float *to = (float *)((char *)network + tensors[i].offset);
        if (!read_floats(d, member(d, model, tensors[i].name), tensors[i].rows, tensors[i].columns, to))
            return false;
    }
    return true;
}

/* Keep the link alive during a long training. */
static void keep_alive(void *client)
{
    netq_step(client, 0);
}

static void reply_report(struct trainer *t, const struct network *network)
{
    double accuracy, loss;
    char text[1024];
    int n = begin_text(text, sizeof text, "Reply", &t->job);
    evaluate(network, &t->examples, &accuracy, &loss);
    snprintf(text + n, sizeof text - (size_t)n,
             "\"content\":{\"type\":\"Report\",\"num_examples\":%zu,\"metrics\":{\"accuracy\":%.9g,\"loss\":%.9g}}}",
             t->examples.count, accuracy, loss);
    send_text(t, text);
}

/* Return the message with the trained network. */
static uint8_t *compose_update(const struct trainer *t, const struct network *network, uint64_t *size)
{
    char text[2048];
    const float *floats[TENSORS];
    size_t counts[TENSORS], room = sizeof text;
    int n = begin_text(text, room, "Reply", &t->job);
    n += snprintf(text + n, room - (size_t)n, "\"content\":{\"type\":\"Update\",\"num_examples\":%zu,\"model\":{",
                  t->examples.count);
    for (int i = 0; i < TENSORS; i++) {
        char columns[16] = "";
        if (tensors[i].columns)
            snprintf(columns, sizeof columns, ",%d", tensors[i].columns);
        n += snprintf(text + n, room - (size_t)n, "%s\"%s\":{\"$array\":[%d,\"<f4\",[%d%s]]}", i ? "," : "",
                      tensors[i].name, i, tensors[i].rows, columns);
        floats[i] = (const float *)((const char *)network + tensors[i].offset);
        counts[i] = (size_t)tensors[i].rows * (size_t)LARGER(tensors[i].columns, 1);
    }
    snprintf(text + n, room - (size_t)n, "}}}");
    return compose(text, TENSORS, floats, counts, size);
}

static void send_kept(struct trainer *t)
{
    netq_put(t->client, 0, t->kept, t->kept_size, free_data);
    t->kept = NULL;
}

static void send_offer(struct trainer *t)
{
    char text[1024];
    int n = begin_text(text, sizeof text, "Offer", &t->job);
    snprintf(text + n, sizeof text - (size_t)n, "\"size\":%zu}", sizeof(struct network));
    send_text(t, text);
}

/* Train, and send the update; or offer it, if it is larger than what may be sent unasked. */
static void reply_update(struct trainer *t, const struct network *network, uint64_t seed, bool deltas, uint64_t unasked)
{
    struct network trained = *network;
    float *weights = (float *)&trained;
    const float *start = (const float *)network;
    bool finite = true;
    train(&trained, &t->examples, seed, keep_alive, t->client);
    for (int i = 0; i < PARAMETERS; i++) {
        finite = finite && isfinite(weights[i]);
        weights[i] -= deltas ? start[i] : 0;
    }
    if (!finite) {
        refuse(t, "the training has diverged: a weight is not finite");
        return;
    }
    t->kept = compose_update(t, &trained, &t->kept_size);
    if (sizeof trained <= unasked)
        send_kept(t);
    else
        send_offer(t);
}

static bool do_task(struct trainer *t, struct document *d, const struct value *message)
{
    static const char *const keys[] = {"type",        "job",      "model",    "config",  "unasked",  "deltas", "compression",
                                       "counted",     "roles",    "answered", "deadline", "folding", "excluded", "secure"};
    struct network network;
    uint64_t unasked, seed = 0, round;
    if (!check_keys(d, message, 5, 14, keys) || !read_job(d, member(d, message, "job"), &t->job))
        return false;
    if (!as_whole(member(d, message, "unasked"), &unasked))
        return mistake(d, "a Task: expected a number of bytes as unasked");
    free(t->kept); /* the round of an offered reply is over */
    t->kept = NULL;
    const struct value *secure = member(d, message, "secure");
    if ((secure && secure->count) || !strcmp(t->job.purpose, "secure")) {
        refuse(t, "this client takes no part in secure aggregation");
        return true;
    }
    if (!strcmp(t->job.purpose, "statistics")) {
        refuse(t, "this client gives no statistics of its data");
        return true;
    }
    if (!read_network(d, member(d, message, "model"), &network)) {
        refuse(t, d->error);
        return true;
    }
    const struct value *deltas = member(d, message, "deltas");
    as_whole(member(d, member(d, message, "config"), "seed"), &seed);
    round = strtoull(t->job.round, NULL, 10);
    seed ^= round << 32 ^ t->examples.count;
    if (!strcmp(t->job.purpose, "evaluate"))
        reply_report(t, &network);
    else
        reply_update(t, &network, seed, deltas && deltas->kind == BOOLEAN && *deltas->text == 't', unasked);
    return true;
}

static bool take_permit(struct trainer *t, struct document *d, const struct value *message)
{
    static const char *const keys[] = {"type", "job"};
    struct job job;
    if (!check_keys(d, message, 2, 2, keys) || !read_job(d, member(d, message, "job"), &job))
        return false;
    if (t->kept && !strcmp(job.run, t->job.run) && !strcmp(job.round, t->job.round) && job.purpose == t->job.purpose)
        send_kept(t);
    return true;
}

static bool take_message(struct trainer *t, struct document *d)
{
    const struct value *type = member(d, d->values, "type");
    if (type && equals(type, "Task"))
        return do_task(t, d, d->values);
    if (type && equals(type, "Permit"))
        return take_permit(t, d, d->values);
    t->ended = type && equals(type, "End");
    return t->ended || mistake(d, "a message of another type: expected Task, Permit or End");
}

static void stop(int number)
{
    told_to_stop = number;
}

/* One session: take messages until the federation or the session is over, or a signal has come. */
static void converse(struct trainer *t)
{
    while (!t->ended && !told_to_stop && !t->client->over) {
        struct document document;
        struct message *m = netq_get(t->client, 500);
        if (!m && t->client->session.heard_fin)
            break;
        if (!m)
            continue;
        if (!open_document(&document, m->data, m->size) || !take_message(t, &document))
            warn("a message of the server is ignored: %s", document.error);
        close_document(&document);
        free_message(m);
    }
    if (told_to_stop && !t->ended)
        send_text(t, "{\"type\":\"Leave\",\"reason\":\"told to stop\"}");
    else if (!t->ended)
        warn("the session has ended without End; beginning anew");
}

/* ==== 9. Commands ============================================================================================= */

static const char USAGE[] =
    "usage: netq-client COMMAND HOST PORT [ARGUMENTS] [OPTIONS]\n"
    "  send FILE...          put each file as a message, and close when the server has all\n"
    "  get COUNT FOLDER      write as many messages to FOLDER/0, FOLDER/1, ... and close\n"
    "  echo                  send each message back on its lane, until the server closes\n"
    "  train FILE            take part in the digits federation with the examples in FILE\n"
    "  bench up|down|round SIZE COUNT\n"
    "  --id UUID             of this client; otherwise that of its certificate, or a random one\n"
    "  --lane N              of send: 0 to 15\n"
    "  --window BYTES        unread bytes in a lane (4 MiB)\n"
    "  --message-size BYTES  of the largest message that is accepted (1 GiB)\n"
    "  --heartbeat MS        (10000)\n"
    "  --patience MS         without a link, until the session is over (3600000)\n"
    "  --authority FILE      PEM: use TLS; the server needs a certificate of this authority\n"
    "  --certificate FILE, --key FILE   PEM, of this client, for a server that asks for them\n";

static unsigned failed; /* messages of `send` and `bench` that were not acknowledged */

static void count_failed(uint8_t *data, bool acknowledged)
{
    (void)data;
    failed += !acknowledged;
}

static void free_and_count(uint8_t *data, bool acknowledged)
{
    count_failed(data, acknowledged);
    free(data);
}

static int give_up(const char *what, const char *why)
{
    warn("%s: %s", what, why);
    return 2;
}

static bool read_more(FILE *file, uint8_t **data, size_t *size, size_t *room)
{
    if (*size == *room) {
        size_t more = *room ? 2 * *room : 4096;
        uint8_t *larger = realloc(*data, more);
        if (!larger)
            return false;
        *data = larger;
        *room = more;
    }
    *size += fread(*data + *size, 1, *room - *size, file);
    return !ferror(file);
}

/* Read to the end of the file: those of /proc, and pipes, have no size before. */
static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t room = 0;
    bool works = file;
    *size = 0;
    while (works && !feof(file))
        works = read_more(file, &data, size, &room);
    if (!works) {
        give_up(path, strerror(errno));
        free(data);
        data = NULL;
    }
    if (file)
        fclose(file);
    return data;
}

/* Close, and return the exit status. */
static int conclude(struct client *c)
{
    bool orderly = netq_close(c, c->options.patience);
    if (failed)
        warn("the server has not acknowledged %u message%s", failed, failed == 1 ? "" : "s");
    else if (!orderly)
        warn("the server has not closed the session");
    return !orderly || failed;
}

static int run_send(const struct options *options, unsigned lane, int count, char **files)
{
    struct client *c = netq_open(options);
    for (int i = 0; i < count; i++) {
        size_t size;
        uint8_t *data = read_file(files[i], &size);
        if (!data) {
            netq_close(c, 0); /* it has not connected yet */
            return 2;
        }
        netq_put(c, lane, data, size, free_and_count);
    }
    return conclude(c);
}

static bool is_folder(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/.", folder);
    return !access(path, W_OK | X_OK);
}

static bool write_file(const char *folder, uint64_t number, const struct message *m)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%" PRIu64, folder, number);
    FILE *file = fopen(path, "wb");
    bool works = file && fwrite(m->data ? m->data : (const uint8_t *)"", 1, m->size, file) == m->size;
    if (file && fclose(file))
        works = false;
    if (!works)
        give_up(path, strerror(errno));
    return works;
}

/* A message that cannot be written ends the session at once, so that the server's other messages fail there. */
static int run_get(const struct options *options, uint64_t count, const char *folder)
{
    uint64_t got = 0;
    struct message *m;
    if (!is_folder(folder))
        return give_up(folder, strerror(errno));
    struct client *c = netq_open(options);
    while (got < count && (m = netq_get(c, -1))) {
        bool works = write_file(folder, got++, m);
        free_message(m);
        if (!works) {
            netq_close(c, 0);
            return 1;
        }
    }
    if (got < count)
        warn("expected %" PRIu64 " messages: the server has sent %" PRIu64, count, got);
    return conclude(c) || got < count;
}

static int run_echo(const struct options *options)
{
    struct client *c = netq_open(options);
    struct message *m;
    while ((m = netq_get(c, -1))) {
        netq_put(c, (unsigned)m->lane, m->data, m->size, free_and_count);
        free(m);
    }
    return conclude(c);
}

static bool valid_examples(const struct examples *e, size_t size)
{
    bool valid = e->count && e->count * ROW == size;
    for (size_t i = 0; valid && i < size; i++)
        valid = e->rows[i] <= (i % ROW == PIXELS ? DIGITS - 1 : 16);
    return valid;
}

static int run_train(const struct options *options, const char *path)
{
    size_t size;
    struct trainer t = {.examples.rows = read_file(path, &size)};
    struct sigaction action = {.sa_handler = stop};
    if (!t.examples.rows)
        return 2;
    t.examples.count = size / ROW;
    if (!valid_examples(&t.examples, size)) {
        free(t.examples.rows);
        return give_up(path, "expected rows of 64 pixels from 0 to 16 and a digit, a byte each (see partition.py)");
    }
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    while (!t.ended && !told_to_stop) {
        t.client = netq_open(options);
        converse(&t);
        free(t.kept);
        t.kept = NULL;
        netq_close(t.client, 10000);
        if (!t.ended && !told_to_stop)
            sleep(1);
    }
    free(t.examples.rows);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* up: messages to the server, which answers the last. down: one to the server, which sends as many back. round: one
 * there and one back, in turn. Prints seconds; of a round trip the median. benchmarks/c_client.py has the server. */
static int run_bench(const struct options *options, const char *way, uint64_t size, uint64_t count)
{
    struct client *c = netq_open(options);
    uint8_t *data = allocate(size + 1);
    double *times = allocate((count + 1) * sizeof *times), *end = times;
    struct message *m = NULL;
    bool up = !strcmp(way, "up"), round = !strcmp(way, "round");
    while (!c->session.greeted && !c->over)
        netq_step(c, -1);
    int64_t began = nanoseconds();
    for (uint64_t i = 0; i < count && !c->over; i++) {
        int64_t start = nanoseconds();
        if (up || round || !i)
            netq_put(c, 0, data, size, count_failed);
        if ((!up || i == count - 1) && (m = netq_get(c, -1)))
            free_message(m);
        *end++ = (double)(nanoseconds() - start) / 1e9;
    }
    double seconds = (double)(nanoseconds() - began) / 1e9;
    qsort(times, (size_t)(end - times), sizeof *times, by_value);
    printf("%.9f\n", round && end > times ? times[(end - times) / 2] : seconds);
    int status = conclude(c);
    free(times);
    free(data);
    return status;
}

static bool read_uuid(const char *text, uint8_t *id)
{
    size_t digit = 0;
    for (; *text; text++) {
        const char *digits = "0123456789abcdef", *found = strchr(digits, *text | 0x20);
        if (*text == '-')
            continue;
        if (!found || digit == 32)
            return false;
        id[digit / 2] = (uint8_t)(id[digit / 2] << 4 | (found - digits));
        digit++;
    }
    return digit == 32;
}

#ifdef NETQ_TLS
/* Read the id that a certificate names: one URI urn:uuid:... among its subject alternative names. */
static bool certificate_id(const char *path, uint8_t *id)
{
    static const char prefix[] = "urn:uuid:";
    FILE *file = fopen(path, "r");
    X509 *certificate = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    GENERAL_NAMES *names = certificate ? X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL) : NULL;
    int found = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        const ASN1_STRING *uri = name->type == GEN_URI ? name->d.uniformResourceIdentifier : NULL;
        char text[64] = "";
        if (uri)
            snprintf(text, sizeof text, "%.*s", ASN1_STRING_length(uri), (const char *)ASN1_STRING_get0_data(uri));
        found += !strncasecmp(text, prefix, strlen(prefix)) && read_uuid(text + strlen(prefix), id);
    }
    GENERAL_NAMES_free(names);
    X509_free(certificate);
    if (file)
        fclose(file);
    return found == 1;
}
#endif

/* A whole number of the command line within limits; else the program ends. */
static uint64_t whole(const char *what, const char *text, uint64_t least, uint64_t most)
{
    errno = 0;
    uint64_t value = strtoull(text, NULL, 10);
    if (errno || !*text || digits(text) != strlen(text) || value < least || value > most) {
        warn("%s %s: expected a whole number from %" PRIu64 " to %" PRIu64, what, text, least, most);
        exit(2);
    }
    return value;
}

static bool is_way(const char *text)
{
    return !strcmp(text, "up") || !strcmp(text, "down") || !strcmp(text, "round");
}

static int run(const struct options *options, unsigned lane, int count, char **words)
{
    const char *command = words[0];
    if (!strcmp(command, "send") && count > 3)
        return run_send(options, lane, count - 3, words + 3);
    if (!strcmp(command, "get") && count == 5)
        return run_get(options, whole("COUNT", words[3], 1, UINT32_MAX), words[4]);
    if (!strcmp(command, "echo") && count == 3)
        return run_echo(options);
    if (!strcmp(command, "train") && count == 4)
        return run_train(options, words[3]);
    if (!strcmp(command, "bench") && count == 6 && is_way(words[3]))
        return run_bench(options, words[3], whole("SIZE", words[4], 0, 1 << 30), whole("COUNT", words[5], 1, 1 << 30));
    fputs(USAGE, stderr);
    return 2;
}

#ifndef NETQ_NO_MAIN
/* Check the files of TLS before the client connects, and find its id. Returns the exit status if something is wrong. */
static int identify(struct options *options, const char *id)
{
    const struct credentials *files = &options->files;
    const char *paths[] = {files->authority, files->certificate, files->key};
    if (!files->certificate != !files->key)
        return give_up("--certificate, --key", "expected both or none");
    if (files->certificate && !files->authority)
        return give_up("--certificate, --key", "expected --authority with them: it is what turns TLS on");
    for (int i = 0; i < 3; i++)
        if (paths[i] && access(paths[i], R_OK))
            return give_up(paths[i], strerror(errno));
    if (id)
        return read_uuid(id, options->id) ? 0 : give_up(id, "expected a UUID");
#ifdef NETQ_TLS
    if (files->certificate && certificate_id(files->certificate, options->id))
        return 0;
    if (files->certificate)
        return give_up(files->certificate, "expected a certificate with one id urn:uuid:..., as of `netq certs issue`");
#endif
    random_bytes(options->id, sizeof options->id);
    options->id[6] = (options->id[6] & 0x0f) | 0x40; /* a UUID of version 4 (RFC 9562) */
    options->id[8] = (options->id[8] & 0x3f) | 0x80;
    return 0;
}

/* Read the options, and move them before the other words. Returns the exit status if something is wrong. */
static int read_options(int count, char **words, struct options *options, unsigned *lane)
{
    static const struct option known[] = {
        {"id", required_argument, NULL, 'i'},          {"lane", required_argument, NULL, 'l'},
        {"window", required_argument, NULL, 'w'},      {"message-size", required_argument, NULL, 'm'},
        {"heartbeat", required_argument, NULL, 'h'},   {"patience", required_argument, NULL, 'p'},
        {"authority", required_argument, NULL, 'a'},   {"certificate", required_argument, NULL, 'c'},
        {"key", required_argument, NULL, 'k'},         {NULL, 0, NULL, 0},
    };
    const char *id = NULL;
    int option;
    while ((option = getopt_long(count, words, "", known, NULL)) != -1)
        switch (option) {
        case 'i':
            id = optarg;
            break;
        case 'l':
            *lane = (unsigned)whole("--lane", optarg, 0, LANES - 1);
            break;
        case 'w':
            options->window = whole("--window", optarg, 1, LARGEST_SIZE);
            break;
        case 'm':
            options->message_size = whole("--message-size", optarg, 1, LARGEST_SIZE);
            break;
        case 'h':
            options->heartbeat = (int64_t)whole("--heartbeat", optarg, 1, UINT32_MAX);
            break;
        case 'p':
            options->patience = (int64_t)whole("--patience", optarg, 1, INT_MAX);
            break;
        case 'a':
            options->files.authority = optarg;
            break;
        case 'c':
            options->files.certificate = optarg;
            break;
        case 'k':
            options->files.key = optarg;
            break;
        default:
            return 2;
        }
#ifndef NETQ_TLS
    if (options->files.authority || options->files.certificate || options->files.key)
        return give_up("--authority, --certificate, --key",
                       "this program was built without TLS: `make TLS=1` builds build/netq-client-tls");
#endif
    return identify(options, id);
}

int main(int count, char **words)
{
    struct options options = {
        .window = 4 << 20, .message_size = 1 << 30, .heartbeat = 10000, .patience = 3600000};
    unsigned lane = 0;
    int status = read_options(count, words, &options, &lane);
    if (status)
        return status;
    if (count - optind < 3) {
        fputs(USAGE, stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes without MSG_NOSIGNAL */
    options.host = words[optind + 1];
    options.port = words[optind + 2];
    whole("PORT", options.port, 1, 65535);
    return run(&options, lane, count - optind, words + optind);
}
#endif
