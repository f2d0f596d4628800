/* dtr/ops.h: the numbers that go with an op, which a recorder reports (dtr/framework.h). */
#ifndef DTR_OPS_H
#define DTR_OPS_H

/* CFFI BEGIN */

/* How an op uses a tensor argument: the low three bits of its entry in the
 * frame's buffer, whose other bits are the tensor's address. */
enum {
  DTR_USE_READ = 0,
  DTR_USE_MUTATE = 1,     /* reads and overwrites */
  DTR_USE_WRITE_ONLY = 2, /* overwrites every element and reads none */
  DTR_USE_SCRATCH = 3,    /* hidden state: overwritten, and no input of the results */
  DTR_USE_CONSTANT = 4    /* added: a parameter; forgets its parent, stays a constant */
};

/* Flags of an op. */
enum {
  DTR_OP_RECOMPUTABLE = 1, /* running it again on the same inputs gives the same bits */
  DTR_OP_KEEPS_OLD = 2, /* what it overwrites and cannot be computed again is kept in a copy, if it
                            is small: the op gives more than what it overwrites */
  DTR_OP_COPIES = 4     /* all it does is to copy its second tensor to its first, element by
                            element */
};

/* What op_begin answers: 0 means run the op at once. */
enum {
  DTR_NEED_WORK = 1,         /* call op_prepare before the op runs */
  DTR_HAS_FOREIGN = 2,       /* inputs on devices that are not managed: keep them by value */
  DTR_NO_CLOSURE = 8,        /* of an op that is recomputable: it will not be recorded after all */
  DTR_GRAPH_IS_CAPTURED = 16 /* the op's work is done when the graph is launched */
};

/* CFFI END */

#endif
