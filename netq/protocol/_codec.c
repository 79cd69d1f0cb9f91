/* netq/protocol/codec.py in C: its three functions, and a message's attributes. Same behaviour; the tests run both.

   Uses the stable ABI of CPython 3.11 (abi3). Signal handlers run between Python bytecodes. There are none here, except
   in what these functions call: `acked` of a message that is watched, and finalizers of released data (Python ignores
   exceptions in finalizers). So nothing here is interrupted halfway, unlike in codec.py. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#if PY_BIG_ENDIAN
#error "Header is read and written as it lies in memory: on a big-endian machine netq uses codec.py"
#endif

#define OVERHEAD 256 /* wire.OVERHEAD */
#define MSG 2
#define ACK 3

typedef unsigned long long u64;

/* Interned names of attributes and methods: s_lane is "lane". */
#define NAMES(X)                                                                                                       \
    X(next) X(_position) X(sent) X(lane) X(limit) X(number) X(buffers) X(nbytes) X(append) X(popleft) X(acked)         \
    X(peer) X(small) X(receivers) X(senders) X(arrived) X(owed) X(extend) X(parts) X(claimed) X(held) X(start)         \
    X(cancelled) X(messages_in) X(messages_out) X(bytes_in) X(bytes_out)
#define DECLARE(name) static PyObject *s_##name;
NAMES(DECLARE)
static PyObject *no_data, *no_audience; /* b"", () */
static PyTypeObject *Message_type;

/* Access to Python objects. Functions that return an int return -1 with an error set if they have failed. */

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

/* Forget what a call has returned. */
static int drop(PyObject *returned)
{
    Py_XDECREF(returned);
    return returned == NULL ? -1 : 0;
}

static void replace(PyObject **place, PyObject *by)
{
    PyObject *old = *place;
    *place = Py_NewRef(by);
    Py_XDECREF(old);
}

/* The header of a frame, as docs/reference/protocol.md has it: integers are little-endian. */

typedef struct {
    uint8_t kind, flags;
    uint16_t lane;
    uint32_t length;
    uint64_t number, value;
} Header;
_Static_assert(sizeof(Header) == 24, "a header has 24 bytes");

/* Message: the attributes of codec.Outgoing, which has the methods. */

typedef struct {
    PyObject_HEAD
    PyObject *data, *audience;
    u64 size, number, start;
    long lane;
    char withdrawn, left, waits, held, watched;
} Message;

static int message_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"data", "lane", "audience", NULL};
    Message *self = (Message *)object;
    PyObject *data = NULL, *lane = NULL, *audience = NULL;
    if (keywords == NULL ? !PyArg_UnpackTuple(args, "Outgoing", 1, 3, &data, &lane, &audience) /* the faster one */
                         : !PyArg_ParseTupleAndKeywords(args, keywords, "O|OO", names, &data, &lane, &audience))
        return -1;
    if (PyBytes_CheckExact(data))
        self->size = (u64)PyBytes_Size(data);
    else if (get_u64(data, s_nbytes, &self->size))
        return -1;
    self->lane = lane == NULL ? 0 : PyLong_AsLong(lane);
    if (self->lane == -1 && PyErr_Occurred())
        return -1;
    replace(&self->data, data);
    replace(&self->audience, audience == NULL ? no_audience : audience);
    return 0;
}

static int message_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Message *)object)->data);
    Py_VISIT(((Message *)object)->audience);
    return 0;
}

static int message_clear(PyObject *object)
{
    Py_CLEAR(((Message *)object)->data);
    Py_CLEAR(((Message *)object)->audience);
    return 0;
}

static void message_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    message_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

#define MEMBER(name, type) {#name, type, offsetof(Message, name), 0, NULL}
static PyMemberDef message_members[] = {
    MEMBER(data, T_OBJECT), MEMBER(audience, T_OBJECT),   MEMBER(size, T_ULONGLONG), MEMBER(number, T_ULONGLONG),
    MEMBER(lane, T_LONG),   MEMBER(start, T_ULONGLONG),   MEMBER(withdrawn, T_BOOL), MEMBER(left, T_BOOL),
    MEMBER(waits, T_BOOL),  MEMBER(held, T_BOOL),         MEMBER(watched, T_BOOL),   {NULL, 0, 0, 0, NULL},
};
static PyType_Slot message_slots[] = {
    {Py_tp_new, PyType_GenericNew},     {Py_tp_init, message_init},   {Py_tp_dealloc, message_dealloc},
    {Py_tp_traverse, message_traverse}, {Py_tp_clear, message_clear}, {Py_tp_members, message_members},
    {Py_tp_doc, "The attributes of netq.protocol.codec.Outgoing."},   {0, NULL},
};
static PyType_Spec message_spec = {
    "netq.protocol._codec.Message", sizeof(Message), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    message_slots,
};

/* Return a new reference to the first message of a deque; NULL with an error set if there is none. */
static Message *first_of(PyObject *queue)
{
    PyObject *first = PySequence_GetItem(queue, 0);
    if (first != NULL && !PyObject_TypeCheck(first, Message_type)) {
        PyErr_SetString(PyExc_TypeError, "a queue of messages holds something else");
        Py_CLEAR(first);
    }
    return (Message *)first;
}

/* batch(sender, out, small, limit, source) */

static int append_data(PyObject *out, PyObject *data)
{
    PyObject *buffers;
    int failed;
    if (PyBytes_CheckExact(data))
        return PyList_Append(out, data);
    buffers = PyObject_GetAttr(data, s_buffers);
    failed = buffers == NULL || PyList_SetSlice(out, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, buffers);
    Py_XDECREF(buffers);
    return failed ? -1 : 0;
}

typedef struct {
    PyObject *out, *source, *append, *popleft; /* the methods sent.append and source.popleft */
    u64 small, most, lane, number, position, size;
} Batch;

/* Append the first message of `source` to `sent`; then remove it from `source`, and append its frame to `out`. Return
   1; 0 if it is for the general path. */
static int send_first(Batch *b)
{
    Message *message = first_of(b->source);
    PyObject *data, *header;
    Header h = {MSG, 0, (uint16_t)b->lane, 0, b->number, 0};
    int failed;
    if (message == NULL)
        return -1;
    if (message->size > b->small || message->withdrawn || (u64)message->lane != b->lane ||
        b->position + (message->size ? message->size : 1) > b->most) {
        Py_DECREF((PyObject *)message);
        return 0;
    }
    message->number = b->number++;
    message->start = b->position;
    message->left = 1;
    b->position += message->size + OVERHEAD;
    b->size += message->size + sizeof(Header);
    data = message->data == NULL ? Py_None : message->data; /* NULL: it was made without __init__ */
    h.length = (uint32_t)message->size;
    h.value = message->size;
    header = PyBytes_FromStringAndSize((const char *)&h, sizeof h);
    failed = header == NULL || drop(PyObject_CallFunctionObjArgs(b->append, (PyObject *)message, NULL)) ||
             drop(PyObject_CallNoArgs(b->popleft)) || PyList_Append(b->out, header) || append_data(b->out, data);
    Py_XDECREF(header);
    Py_DECREF((PyObject *)message);
    return failed ? -1 : 1;
}

static PyObject *batch(PyObject *module, PyObject *args)
{
    Batch b = {0};
    PyObject *sender, *sent;
    long long limit;
    Py_ssize_t left = 0;
    int going;
    if (!PyArg_ParseTuple(args, "OO!KLO", &sender, &PyList_Type, &b.out, &b.small, &limit, &b.source) ||
        get_u64(sender, s_next, &b.number) || get_u64(sender, s__position, &b.position) ||
        get_u64(sender, s_limit, &b.most) || get_u64(sender, s_lane, &b.lane) ||
        (sent = PyObject_GetAttr(sender, s_sent)) == NULL)
        return NULL;
    b.append = PyObject_GetAttr(sent, s_append);
    b.popleft = b.append == NULL ? NULL : PyObject_GetAttr(b.source, s_popleft);
    going = b.popleft == NULL ? -1 : 1;
    while (going > 0 && (long long)b.size < limit && (left = PySequence_Size(b.source)) > 0)
        going = send_first(&b);
    Py_DECREF(sent);
    Py_XDECREF(b.append);
    Py_XDECREF(b.popleft);
    if (going < 0 || left < 0 || set_u64(sender, s__position, b.position) || set_u64(sender, s_next, b.number) ||
        set_u64(sender, s_number, b.number))
        return NULL;
    return PyLong_FromUnsignedLongLong(b.size);
}

/* settle(sent, number) */

static int settle_up_to(PyObject *sent, u64 number, u64 *count, u64 *size)
{
    Py_ssize_t left;
    *count = *size = 0;
    while ((left = PySequence_Size(sent)) > 0) {
        Message *message = first_of(sent);
        int failed = message == NULL;
        if (failed || message->number > number) {
            Py_XDECREF((PyObject *)message);
            return failed ? -1 : 0;
        }
        if (message->watched)
            failed = drop(PyObject_CallMethodObjArgs((PyObject *)message, s_acked, NULL));
        else { /* as Outgoing.acked does, without the call */
            replace(&message->data, no_data);
            message->held = 1;
        }
        failed = failed || PySequence_DelItem(sent, 0);
        if (!message->withdrawn) {
            ++*count;
            *size += message->size;
        }
        Py_DECREF((PyObject *)message);
        if (failed)
            return -1;
    }
    return left < 0 ? -1 : 0;
}

static PyObject *settle(PyObject *module, PyObject *args)
{
    PyObject *sent;
    u64 number, count, size;
    if (!PyArg_ParseTuple(args, "OK", &sent, &number) || settle_up_to(sent, number, &count, &size))
        return NULL;
    return Py_BuildValue("KK", count, size);
}

/* take(session, data, low, high). Its parts return 1 if they have received something, and 0 if the next frame is for
   the general path. */

typedef struct {
    PyObject *session, *peer;
    const char *data;
    u64 low, high, small;
} Taking;

static int is_whole(const Taking *t, const Header *h)
{
    return h->kind == MSG && !h->flags && h->length == h->value && h->length <= t->small &&
           t->low + sizeof *h + h->length <= t->high;
}

static PyObject *make_item(const Taking *t, const Header *h, PyObject *receiver, u64 mark)
{
    PyObject *body = PyBytes_FromStringAndSize(t->data + t->low + sizeof *h, (Py_ssize_t)h->length);
    PyObject *at = PyLong_FromUnsignedLongLong(mark), *item = NULL;
    if (body != NULL && at != NULL)
        item = PyTuple_Pack(4, t->peer, body, receiver, at);
    Py_XDECREF(body);
    Py_XDECREF(at);
    return item;
}

/* Pass the items of `whole` to the session, and count them. */
static int commit(const Taking *t, PyObject *receiver, PyObject *lane, PyObject *whole, u64 held, u64 start, u64 size)
{
    PyObject *arrived = PyObject_GetAttr(t->session, s_arrived), *owed = NULL;
    int failed = arrived == NULL || drop(PyObject_CallMethodObjArgs(arrived, s_extend, whole, NULL)) ||
                 (owed = PyObject_GetAttr(t->session, s_owed)) == NULL ||
                 set_u64(receiver, s_held, held) || set_u64(receiver, s_start, start) ||
                 PyObject_SetItem(owed, lane, receiver) ||
                 add_u64(t->session, s_messages_in, (u64)PyList_Size(whole)) || add_u64(t->session, s_bytes_in, size);
    Py_XDECREF(arrived);
    Py_XDECREF(owed);
    return failed ? -1 : 0;
}

/* Receive consecutive messages of one lane. */
static int take_messages(Taking *t, Header h, PyObject *receiver, PyObject *lane)
{
    u64 held, start, limit, cancelled, claimed, size = 0;
    const unsigned lane_number = h.lane;
    PyObject *parts = PyObject_GetAttr(receiver, s_parts), *whole;
    Py_ssize_t count = parts == NULL ? -1 : PyList_Size(parts);
    int failed = 0;
    Py_XDECREF(parts);
    if (count < 0 || get_u64(receiver, s_claimed, &claimed))
        return -1;
    if (count || claimed)
        return 0; /* a message has begun, or the budget has granted a claim: see receiver.py */
    if (get_u64(receiver, s_held, &held) || get_u64(receiver, s_start, &start) ||
        get_u64(receiver, s_limit, &limit) || get_u64(receiver, s_cancelled, &cancelled) ||
        (whole = PyList_New(0)) == NULL)
        return -1;
    while (!failed && h.lane == lane_number && h.number == held + 1 && is_whole(t, &h) &&
           start + (h.length ? h.length : 1) <= limit) {
        PyObject *item = make_item(t, &h, receiver, start - cancelled + h.length + OVERHEAD);
        failed = item == NULL || PyList_Append(whole, item);
        Py_XDECREF(item);
        held = h.number;
        size += h.length;
        start += h.length + OVERHEAD;
        t->low += sizeof h + h.length;
        if (t->high - t->low < sizeof h)
            break;
        memcpy(&h, t->data + t->low, sizeof h);
    }
    count = PyList_Size(whole);
    failed = failed || (count && commit(t, receiver, lane, whole, held, start, size));
    Py_DECREF(whole);
    return failed ? -1 : count > 0;
}

/* Settle what an ACK acknowledges. */
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
    failed = settle_up_to(sent, h->number, &count, &size) || add_u64(t->session, s_messages_out, count) ||
             add_u64(t->session, s_bytes_out, size) || get_u64(sender, s_limit, &limit) ||
             (h->value > limit && set_u64(sender, s_limit, h->value));
    Py_DECREF(sent);
    t->low += sizeof *h;
    return failed ? -1 : 1;
}

static int take_next(Taking *t)
{
    Header h;
    PyObject *lane, *halves = NULL, *half;
    int taken = -1;
    memcpy(&h, t->data + t->low, sizeof h);
    if (h.kind != MSG && h.kind != ACK)
        return 0;
    lane = PyLong_FromLong(h.lane);
    if (lane != NULL && (halves = PyObject_GetAttr(t->session, h.kind == MSG ? s_receivers : s_senders)) != NULL) {
        if ((half = PyDict_GetItemWithError(halves, lane)) == NULL)
            taken = PyErr_Occurred() ? -1 : 0;
        else {
            Py_INCREF(half);
            taken = h.kind == MSG ? take_messages(t, h, half, lane) : take_ack(t, &h, half);
            Py_DECREF(half);
        }
    }
    Py_XDECREF(lane);
    Py_XDECREF(halves);
    return taken;
}

static PyObject *take(PyObject *module, PyObject *args)
{
    Taking t = {0};
    PyObject *data;
    Py_buffer view;
    int taken = -1;
    if (!PyArg_ParseTuple(args, "OOKK", &t.session, &data, &t.low, &t.high) ||
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return NULL;
    t.data = view.buf;
    t.peer = PyObject_GetAttr(t.session, s_peer);
    if (t.high > (u64)view.len)
        PyErr_SetString(PyExc_ValueError, "high lies behind the data");
    else if (t.peer != NULL && !get_u64(t.session, s_small, &t.small))
        do
            taken = t.low < t.high && t.high - t.low >= sizeof(Header) ? take_next(&t) : 0;
        while (taken > 0);
    Py_XDECREF(t.peer);
    PyBuffer_Release(&view);
    return taken < 0 ? NULL : PyLong_FromUnsignedLongLong(t.low);
}

/* The module. */

static PyMethodDef functions[] = {
    {"batch", batch, METH_VARARGS, NULL},
    {"settle", settle, METH_VARARGS, NULL},
    {"take", take, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "netq.protocol._codec", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

#define INTERN(name) || (s_##name = PyUnicode_InternFromString(#name)) == NULL

PyMODINIT_FUNC PyInit__codec(void)
{
    PyObject *module;
    if ((no_data = PyBytes_FromStringAndSize(NULL, 0)) == NULL || (no_audience = PyTuple_New(0)) == NULL ||
        (Message_type = (PyTypeObject *)PyType_FromSpec(&message_spec)) == NULL NAMES(INTERN))
        return NULL;
    module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddObjectRef(module, "Message", (PyObject *)Message_type))
        Py_CLEAR(module);
    return module;
}
