/* Calls parts of examples/c/netq.c with what tests give, under the sanitizers. Reads records from stdin, a length of 4
 * bytes (little-endian) before each, and prints a line for each.
 *
 *   frames   each record is all that a server sends on a link. Prints the fault, or the unsettled and the whole messages
 *   texts    each record is a message of fl. Prints the fault, or the text that was read, as JSON
 */
#define NETQ_NO_MAIN
#include "../../../examples/c/netq.c"

static void feed_link(struct session *s, const uint8_t *bytes, size_t size)
{
    struct iovec pieces[2];
    uint8_t *to;
    size_t room;
    bool works = true;
    session_open(s);
    while (works && size) {
        int count = session_output(s, pieces); /* of a large message half: some of it is always on its way */
        if (count)
            session_sent(s, count > 1 ? pieces[0].iov_len + pieces[1].iov_len / 2 : pieces[0].iov_len);
        works = session_space(s, &to, &room);
        size_t n = SMALLER(SMALLER(size, room), (size_t)1000);
        if (works) {
            memcpy(to, bytes, n);
            works = session_received(s, n);
        }
        bytes += n;
        size -= n;
    }
    printf("%s\n", works ? "fine" : s->error);
}

static void take_frames(const uint8_t *bytes, size_t size)
{
    static uint8_t large[100000];
    struct session *s = allocate(sizeof *s);
    s->window = 100000;
    s->message_size = 1000000;
    s->heartbeat = 10000;
    session_init(s);
    for (unsigned i = 0; i < 6; i++)
        session_put(s, i / 3, large, i * 20000, NULL);
    feed_link(s, bytes, size);
    feed_link(s, bytes, size); /* once more, on a link that would have to resume */
    session_close(s);
    session_free(s);
    free(s);
}

static void print_value(const struct document *d, const struct value *v);

static void print_children(const struct document *d, const struct value *v)
{
    const struct value *at = v + 1;
    for (uint32_t i = 0; i < v->count; i++, at = after(d, at)) {
        if (i)
            putchar(',');
        print_value(d, at);
        if (v->kind == OBJECT) {
            putchar(':');
            at = after(d, at);
            print_value(d, at);
        }
    }
}

static void print_string(const struct value *v)
{
    putchar('"');
    for (size_t i = 0; i < v->length; i++)
        if ((uint8_t)v->text[i] < ' ' || v->text[i] == '"' || v->text[i] == '\\')
            printf("\\u%04x", (unsigned)v->text[i]);
        else
            putchar(v->text[i]);
    putchar('"');
}

static void print_value(const struct document *d, const struct value *v)
{
    switch (v->kind) {
    case STRING:
        print_string(v);
        break;
    case LIST:
    case OBJECT:
        putchar(v->kind == LIST ? '[' : '{');
        print_children(d, v);
        putchar(v->kind == LIST ? ']' : '}');
        break;
    case BOOLEAN:
        fputs(*v->text == 't' ? "true" : "false", stdout);
        break;
    case NUMBER:
        printf("%.*s", (int)v->length, v->text);
        break;
    default:
        fputs("null", stdout);
    }
}

static void take_text(const uint8_t *bytes, size_t size)
{
    struct document d;
    struct network network;
    if (open_document(&d, bytes, size)) {
        read_network(&d, member(&d, d.values, "model"), &network);
        print_value(&d, d.values);
        putchar('\n');
    } else {
        printf("fault: %s\n", d.error);
    }
    close_document(&d);
}

int main(int count, char **words)
{
    uint8_t length[4];
    while (count == 2 && fread(length, 4, 1, stdin) == 1) {
        size_t size = (size_t)load(length, 4);
        uint8_t *bytes = malloc(size); /* exactly: a read beyond it is found */
        if (size && fread(bytes, size, 1, stdin) != 1)
            return 1;
        if (!strcmp(words[1], "frames"))
            take_frames(bytes, size);
        else
            take_text(bytes, size);
        free(bytes);
    }
    return 0;
}
