/* netq/protocol/codec.py in C: the inner loops for small messages. Same names, same behaviour; the tests run both.

   Uses the stable ABI of CPython 3.11 (abi3). Signal handlers run between Python bytecodes. There are none here, except
   in what these functions call: `acked` of a message that is watched, and finalizers of released data (Python
   ignores exceptions in finalizers). So nothing here is interrupted halfway, unlike in codec.py. Integers of the
   protocol are little-endian (docs/reference/protocol.md). */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define HEADER 24    /* bytes of a frame's header: kind, flags, lane, length, number, value */
#define OVERHEAD 256 /* wire.OVERHEAD */
#define MSG 2
#define ACK 3

typedef unsigned long long u64;

/* Interned names of attributes and methods. */
static PyObject *s_next, *s_position, *s_sent, *s_lane, *s_limit, *s_number, *s_buffers, *s_nbytes, *s_append, *s_popleft;
static PyObject *s_acked, *s_peer, *s_small, *s_receivers, *s_senders, *s_arrived, *s_owed, *s_extend, *s_parts;
static PyObject *s_claimed, *s_held, *s_start, *s_cancelled, *s_last, *s_messages_in, *s_messages_out, *s_bytes_in;
static PyObject *s_bytes_out;
static PyObject *empty; /* b"" */
static PyTypeObject *Outgoing_type;

/* Attributes that are unsigned integers. */

static int get_u64(PyObject *object, PyObject *name, u64 *value)
{
    PyObject *found = PyObject_GetAttr(object, name);
    if (found == NULL)
        return -1;
    *value = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return *value == (u64)-1 && PyErr_Occurred() ? -1 : 0;
}

static int set_u64(PyObject *object, PyObject *name, u64 value)
{
    PyObject *made = PyLong_FromUnsignedLongLong(value);
    int failed = made == NULL || PyObject_SetAttr(object, name, made);
    Py_XDECREF(made);
    return failed ? -1 : 0;
}

static int add_u64(PyObject *object, PyObject *name, u64 more)
{
    u64 value;
    return get_u64(object, name, &value) || set_u64(object, name, value + more) ? -1 : 0;
}

/* The header of a frame. */

typedef struct {
    unsigned kind, flags, lane;
    u64 length, number, value;
} Header;

static u64 read_le(const unsigned char *at, int bytes)
{
    u64 value = 0;
    while (bytes--)
        value = value << 8 | at[bytes];
    return value;
}

static void write_le(unsigned char *at, int bytes, u64 value)
{
    for (; bytes--; value >>= 8)
        *at++ = (unsigned char)value;
}

static Header read_header(const unsigned char *at)
{
    Header header = {at[0], at[1], (unsigned)read_le(at + 2, 2), read_le(at + 4, 4), read_le(at + 8, 8),
                     read_le(at + 16, 8)};
    return header;
}

static PyObject *message_header(unsigned lane, u64 length, u64 number)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, HEADER);
    if (made != NULL) {
        unsigned char *at = (unsigned char *)PyBytes_AsString(made);
        at[0] = MSG;
        at[1] = 0;
        write_le(at + 2, 2, lane);
        write_le(at + 4, 4, length);
        write_le(at + 8, 8, number);
        write_le(at + 16, 8, length);
    }
    return made;
}

/* Outgoing */

typedef struct {
    PyObject_HEAD
    PyObject *data, *audience;
    u64 size, number, start;
    long lane;
    char withdrawn, left, waits, held, watched;
} Outgoing;

static void replace(PyObject **place, PyObject *by)
{
    PyObject *old = *place;
    Py_XINCREF(by);
    *place = by;
    Py_XDECREF(old);
}

static int outgoing_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"data", "lane", "audience", NULL};
    Outgoing *self = (Outgoing *)object;
    PyObject *given[3] = {NULL};
    Py_ssize_t count = PyTuple_Size(args), i;
    if (keywords == NULL && 1 <= count && count <= 3) { /* the usual call, faster than by the parser of the C API */
        for (i = 0; i < count; i++)
            given[i] = PyTuple_GetItem(args, i);
    } else if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OO:Outgoing", names, &given[0], &given[1], &given[2]))
        return -1;
    if (PyBytes_CheckExact(given[0]))
        self->size = (u64)PyBytes_Size(given[0]);
    else if (get_u64(given[0], s_nbytes, &self->size))
        return -1;
    self->lane = 0;
    if (given[1] != NULL) {
        long lane = PyLong_AsLong(given[1]);
        if (lane == -1 && PyErr_Occurred())
            return -1;
        self->lane = lane;
    }
    replace(&self->data, given[0]);
    if (given[2] != NULL)
        replace(&self->audience, given[2]);
    else {
        Py_XDECREF(self->audience);
        if ((self->audience = PyTuple_New(0)) == NULL)
            return -1;
    }
    return 0;
}

static int outgoing_traverse(PyObject *object, visitproc visit, void *arg)
{
    Outgoing *self = (Outgoing *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->data);
    Py_VISIT(self->audience);
    return 0;
}

static int outgoing_clear(PyObject *object)
{
    Outgoing *self = (Outgoing *)object;
    Py_CLEAR(self->data);
    Py_CLEAR(self->audience);
    return 0;
}

static void outgoing_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    outgoing_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *outgoing_stop(PyObject *object, void *closure)
{
    Outgoing *self = (Outgoing *)object;
    return PyLong_FromUnsignedLongLong(self->start + self->size + OVERHEAD);
}

/* No Py_RETURN_NONE: the headers of Python 3.12 and 3.13 take None as immortal in it, and the module that they build is
   also loaded by Python 3.11, which counts its references. */
static PyObject *outgoing_withdraw(PyObject *object, PyObject *unused)
{
    ((Outgoing *)object)->withdrawn = 1;
    replace(&((Outgoing *)object)->data, empty);
    return Py_NewRef(Py_None);
}

static void mark_held(Outgoing *message)
{
    replace(&message->data, empty);
    message->held = 1;
}

static PyObject *outgoing_acked(PyObject *object, PyObject *unused)
{
    mark_held((Outgoing *)object);
    return Py_NewRef(Py_None);
}

static PyObject *outgoing_fail(PyObject *object, PyObject *error)
{
    replace(&((Outgoing *)object)->data, empty);
    return Py_NewRef(Py_True);
}

#define MEMBER(name, type, field) {name, type, offsetof(Outgoing, field), 0, NULL}
static PyMemberDef outgoing_members[] = {
    MEMBER("data", T_OBJECT, data),           MEMBER("audience", T_OBJECT, audience),
    MEMBER("size", T_ULONGLONG, size),        MEMBER("number", T_ULONGLONG, number),
    MEMBER("start", T_ULONGLONG, start),      MEMBER("lane", T_LONG, lane),
    MEMBER("withdrawn", T_BOOL, withdrawn),   MEMBER("left", T_BOOL, left),
    MEMBER("waits", T_BOOL, waits),           MEMBER("held", T_BOOL, held),
    MEMBER("watched", T_BOOL, watched),       {NULL, 0, 0, 0, NULL},
};
static PyMethodDef outgoing_methods[] = {
    {"withdraw", outgoing_withdraw, METH_NOARGS, NULL},
    {"acked", outgoing_acked, METH_NOARGS, NULL},
    {"fail", outgoing_fail, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef outgoing_properties[] = {{"stop", outgoing_stop, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot outgoing_slots[] = {
    {Py_tp_new, PyType_GenericNew},         {Py_tp_init, outgoing_init},
    {Py_tp_dealloc, outgoing_dealloc},      {Py_tp_traverse, outgoing_traverse},
    {Py_tp_clear, outgoing_clear},          {Py_tp_members, outgoing_members},
    {Py_tp_methods, outgoing_methods},      {Py_tp_getset, outgoing_properties},
    {Py_tp_doc, "One message on its way to one peer; see netq/protocol/codec.py."},
    {0, NULL},
};
static PyType_Spec outgoing_spec = {
    "netq.protocol.codec.Outgoing", sizeof(Outgoing), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    outgoing_slots,
};

/* Return a new reference to the first message of a deque; NULL with an error set if there is none. */
static Outgoing *first_of(PyObject *queue)
{
    PyObject *first = PySequence_GetItem(queue, 0);
    if (first != NULL && !PyObject_TypeCheck(first, Outgoing_type)) {
        PyErr_SetString(PyExc_TypeError, "a queue of messages holds something else");
        Py_CLEAR(first);
    }
    return (Outgoing *)first;
}

/* batch(sender, out, small, limit, source) */

static int append_data(PyObject *out, PyObject *data)
{
    PyObject *buffers;
    Py_ssize_t i, count;
    int failed = 0;
    if (data == NULL) {
        PyErr_SetString(PyExc_TypeError, "a message without data");
        return -1;
    }
    if (PyBytes_CheckExact(data))
        return PyList_Append(out, data);
    if ((buffers = PyObject_GetAttr(data, s_buffers)) == NULL)
        return -1;
    count = PyList_Size(buffers);
    for (i = 0; i < count && !failed; i++)
        failed = PyList_Append(out, PyList_GetItem(buffers, i));
    Py_DECREF(buffers);
    return failed || count < 0 ? -1 : 0;
}

/* Append `message`, the first of `source`, to `sent`; then remove it from `source`, and append its frame to `out`. */
static int send_one(Outgoing *message, u64 number, u64 position, PyObject *out, PyObject *append, PyObject *popleft)
{
    PyObject *header, *done;
    int failed;
    message->number = number;
    message->start = position;
    message->left = 1;
    if ((header = message_header((unsigned)message->lane, message->size, number)) == NULL)
        return -1;
    if ((done = PyObject_CallFunctionObjArgs(append, (PyObject *)message, NULL)) != NULL) {
        Py_DECREF(done);
        done = PyObject_CallNoArgs(popleft);
    }
    Py_XDECREF(done);
    failed = done == NULL || PyList_Append(out, header) || append_data(out, message->data);
    Py_DECREF(header);
    return failed ? -1 : 0;
}

static PyObject *batch(PyObject *module, PyObject *args)
{
    PyObject *sender, *out, *source, *sent = NULL, *append = NULL, *popleft = NULL;
    u64 small, limit, number, position, most, lane, size = 0;
    int failed = 1;
    long long wanted;
    if (!PyArg_ParseTuple(args, "OO!KLO", &sender, &PyList_Type, &out, &small, &wanted, &source))
        return NULL;
    limit = wanted > 0 ? (u64)wanted : 0;
    if (get_u64(sender, s_next, &number) || get_u64(sender, s_position, &position) ||
        get_u64(sender, s_limit, &most) || get_u64(sender, s_lane, &lane))
        return NULL;
    if ((sent = PyObject_GetAttr(sender, s_sent)) == NULL || (append = PyObject_GetAttr(sent, s_append)) == NULL ||
        (popleft = PyObject_GetAttr(source, s_popleft)) == NULL)
        goto end;
    while (size < limit && PySequence_Size(source) > 0) {
        Outgoing *message = first_of(source);
        u64 length;
        failed = 1;
        if (message == NULL)
            goto end;
        length = message->size;
        if (length > small || message->withdrawn || position + (length ? length : 1) > most ||
            (u64)message->lane != lane) {
            Py_DECREF(message);
            break;
        }
        failed = send_one(message, number, position, out, append, popleft);
        Py_DECREF(message);
        if (failed)
            goto end;
        number++;
        position += length + OVERHEAD;
        size += length + HEADER;
    }
    failed = set_u64(sender, s_position, position) || set_u64(sender, s_next, number) ||
             set_u64(sender, s_number, number);
end:
    Py_XDECREF(sent);
    Py_XDECREF(append);
    Py_XDECREF(popleft);
    return failed ? NULL : PyLong_FromUnsignedLongLong(size);
}

/* settle(sent, number) */

static int settle_up_to(PyObject *sent, u64 number, u64 *count, u64 *size)
{
    PyObject *popleft = PyObject_GetAttr(sent, s_popleft), *done;
    *count = *size = 0;
    if (popleft == NULL)
        return -1;
    while (PySequence_Size(sent) > 0) {
        Outgoing *message = first_of(sent);
        if (message == NULL)
            goto failed;
        if (message->number > number) {
            Py_DECREF(message);
            break;
        }
        if (message->watched) {
            done = PyObject_CallMethodObjArgs((PyObject *)message, s_acked, NULL);
            Py_XDECREF(done);
        } else {
            mark_held(message);
            done = empty;
        }
        if (done != NULL && (done = PyObject_CallNoArgs(popleft)) != NULL) {
            Py_DECREF(done);
            if (!message->withdrawn) {
                ++*count;
                *size += message->size;
            }
        }
        Py_DECREF(message);
        if (done == NULL)
            goto failed;
    }
    Py_DECREF(popleft);
    return 0;
failed:
    Py_DECREF(popleft);
    return -1;
}

static PyObject *settle(PyObject *module, PyObject *args)
{
    PyObject *sent;
    u64 number, count, size;
    if (!PyArg_ParseTuple(args, "OK", &sent, &number) || settle_up_to(sent, number, &count, &size))
        return NULL;
    return Py_BuildValue("KK", count, size);
}

/* take(session, data, low, high) */

typedef struct {
    PyObject *session, *peer, *receivers, *senders, *arrived, *owed;
    const unsigned char *data;
    u64 low, high, small;
} Taking;

static int is_whole(const Taking *t, const Header *h)
{
    return h->kind == MSG && !h->flags && h->length == h->value && h->length <= t->small &&
           t->low + HEADER + h->length <= t->high;
}

static PyObject *make_item(const Taking *t, const Header *h, PyObject *receiver, u64 mark)
{
    PyObject *body = PyBytes_FromStringAndSize((const char *)t->data + t->low + HEADER, (Py_ssize_t)h->length);
    PyObject *number = PyLong_FromUnsignedLongLong(h->number), *at = PyLong_FromUnsignedLongLong(mark), *item = NULL;
    if (body != NULL && number != NULL && at != NULL)
        item = PyTuple_Pack(5, t->peer, body, receiver, number, at);
    Py_XDECREF(body);
    Py_XDECREF(number);
    Py_XDECREF(at);
    return item;
}

/* Pass the items of `whole` to the session, and count them. */
static int commit(const Taking *t, PyObject *receiver, PyObject *lane, PyObject *whole, u64 held, u64 start, u64 mark,
                  u64 size)
{
    PyObject *done = PyObject_CallMethodObjArgs(t->arrived, s_extend, whole, NULL), *last;
    int failed;
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    if ((last = Py_BuildValue("KK", held, mark)) == NULL)
        return -1;
    failed = PyObject_SetAttr(receiver, s_last, last) || set_u64(receiver, s_held, held) ||
             set_u64(receiver, s_start, start) || PyObject_SetItem(t->owed, lane, receiver) ||
             add_u64(t->session, s_messages_in, (u64)PyList_Size(whole)) || add_u64(t->session, s_bytes_in, size);
    Py_DECREF(last);
    return failed ? -1 : 0;
}

/* Receive consecutive messages of one lane. Return how many; -1 with an error set. */
static Py_ssize_t take_messages(Taking *t, Header h, PyObject *receiver, PyObject *lane)
{
    u64 held, start, limit, cancelled, claimed, size = 0, mark;
    unsigned lane_number = h.lane;
    PyObject *parts = PyObject_GetAttr(receiver, s_parts), *whole;
    Py_ssize_t count;
    if (parts == NULL)
        return -1;
    count = PyList_Size(parts);
    Py_DECREF(parts);
    if (count || get_u64(receiver, s_claimed, &claimed))
        return count < 0 || !count ? -1 : 0; /* count > 0: a message has begun */
    if (claimed)
        return 0; /* the budget has granted a claim: see receiver.py */
    if (get_u64(receiver, s_held, &held) || get_u64(receiver, s_start, &start) ||
        get_u64(receiver, s_limit, &limit) || get_u64(receiver, s_cancelled, &cancelled) ||
        (whole = PyList_New(0)) == NULL)
        return -1;
    mark = start - cancelled;
    while (h.number == held + 1 && is_whole(t, &h) && start + (h.length ? h.length : 1) <= limit) {
        PyObject *item;
        int failed;
        u64 more = h.length + OVERHEAD;
        if ((item = make_item(t, &h, receiver, mark + more)) == NULL)
            goto failed;
        failed = PyList_Append(whole, item);
        Py_DECREF(item);
        if (failed)
            goto failed;
        held = h.number;
        size += h.length;
        start += more;
        mark += more;
        t->low += HEADER + h.length;
        if (t->high - t->low < HEADER)
            break;
        h = read_header(t->data + t->low);
        if (h.lane != lane_number)
            break;
    }
    count = PyList_Size(whole);
    if (count && commit(t, receiver, lane, whole, held, start, mark, size))
        goto failed;
    Py_DECREF(whole);
    return count;
failed:
    Py_DECREF(whole);
    return -1;
}

/* Settle what an ACK acknowledges. Return 1; 0 if the ACK is for the general path; -1 with an error set. */
static int take_ack(Taking *t, const Header *h, PyObject *sender)
{
    u64 next, limit, count, size;
    PyObject *sent;
    int failed;
    if (get_u64(sender, s_number, &next))
        return -1;
    if (h->flags || h->length || h->number >= next)
        return 0;
    if ((sent = PyObject_GetAttr(sender, s_sent)) == NULL)
        return -1;
    failed = settle_up_to(sent, h->number, &count, &size);
    Py_DECREF(sent);
    if (failed || add_u64(t->session, s_messages_out, count) || add_u64(t->session, s_bytes_out, size) ||
        get_u64(sender, s_limit, &limit) || (h->value > limit && set_u64(sender, s_limit, h->value)))
        return -1;
    t->low += HEADER;
    return 1;
}

/* Return 1 if frames were received, 0 if the next is for the general path, -1 with an error set. */
static int take_next(Taking *t)
{
    Header h = read_header(t->data + t->low);
    PyObject *lane, *half;
    int taken;
    if (h.kind != MSG && h.kind != ACK)
        return 0;
    if ((lane = PyLong_FromUnsignedLong(h.lane)) == NULL)
        return -1;
    half = PyDict_GetItemWithError(h.kind == MSG ? t->receivers : t->senders, lane);
    if (half == NULL)
        taken = PyErr_Occurred() ? -1 : 0;
    else {
        Py_INCREF(half);
        if (h.kind == ACK)
            taken = take_ack(t, &h, half);
        else {
            Py_ssize_t count = take_messages(t, h, half, lane);
            taken = count < 0 ? -1 : count > 0;
        }
        Py_DECREF(half);
    }
    Py_DECREF(lane);
    return taken;
}

static PyObject *take(PyObject *module, PyObject *args)
{
    Taking t = {0};
    PyObject *data;
    Py_buffer view;
    int going = -1;
    if (!PyArg_ParseTuple(args, "OOKK", &t.session, &data, &t.low, &t.high) ||
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return NULL;
    t.data = view.buf;
    t.peer = PyObject_GetAttr(t.session, s_peer);
    t.receivers = PyObject_GetAttr(t.session, s_receivers);
    t.senders = PyObject_GetAttr(t.session, s_senders);
    t.arrived = PyObject_GetAttr(t.session, s_arrived);
    t.owed = PyObject_GetAttr(t.session, s_owed);
    if (t.high > (u64)view.len)
        PyErr_SetString(PyExc_ValueError, "high lies behind the data");
    else if (t.peer && t.receivers && t.senders && t.arrived && t.owed && !get_u64(t.session, s_small, &t.small))
        do
            going = t.high - t.low >= HEADER && t.low < t.high ? take_next(&t) : 0;
        while (going > 0);
    Py_XDECREF(t.peer);
    Py_XDECREF(t.receivers);
    Py_XDECREF(t.senders);
    Py_XDECREF(t.arrived);
    Py_XDECREF(t.owed);
    PyBuffer_Release(&view);
    return going < 0 ? NULL : PyLong_FromUnsignedLongLong(t.low);
}

/* The module. */

static PyMethodDef functions[] = {
    {"batch", batch, METH_VARARGS, NULL},
    {"settle", settle, METH_VARARGS, NULL},
    {"take", take, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "netq.protocol._codec", NULL, -1, functions, NULL, NULL, NULL, NULL};

static const struct {
    PyObject **name;
    const char *text;
} strings[] = {
    {&s_next, "next"},           {&s_position, "_position"},   {&s_sent, "sent"},         {&s_lane, "lane"},
    {&s_limit, "limit"},         {&s_number, "number"},        {&s_buffers, "buffers"},   {&s_nbytes, "nbytes"},
    {&s_append, "append"},       {&s_popleft, "popleft"},      {&s_acked, "acked"},       {&s_peer, "peer"},
    {&s_small, "small"},         {&s_receivers, "receivers"},  {&s_senders, "senders"},   {&s_arrived, "arrived"},
    {&s_owed, "owed"},           {&s_extend, "extend"},        {&s_parts, "parts"},       {&s_claimed, "claimed"},
    {&s_held, "held"},           {&s_start, "start"},          {&s_cancelled, "cancelled"}, {&s_last, "last"},
    {&s_messages_in, "messages_in"}, {&s_messages_out, "messages_out"}, {&s_bytes_in, "bytes_in"},
    {&s_bytes_out, "bytes_out"},
};

PyMODINIT_FUNC PyInit__codec(void)
{
    PyObject *module = PyModule_Create(&definition);
    size_t i;
    if (module == NULL)
        return NULL;
    for (i = 0; i < sizeof strings / sizeof *strings; i++)
        if ((*strings[i].name = PyUnicode_InternFromString(strings[i].text)) == NULL)
            goto failed;
    if ((empty = PyBytes_FromStringAndSize(NULL, 0)) == NULL ||
        (Outgoing_type = (PyTypeObject *)PyType_FromSpec(&outgoing_spec)) == NULL)
        goto failed;
    Py_INCREF((PyObject *)Outgoing_type);
    if (PyModule_AddObject(module, "Outgoing", (PyObject *)Outgoing_type) == 0)
        return module;
    Py_DECREF((PyObject *)Outgoing_type);
failed:
    Py_DECREF(module);
    return NULL;
}
