// op_call.h: one operator call, from its begin to its end.
#pragma once

#include <cstdint>
#include <vector>

#include "base/scratch.h"
#include "dtr/framework.h"
#include "records.h"

namespace dtr {

// One tensor argument.
struct Input {
  const void* tensor = nullptr;
  Storage* storage = nullptr;  // locked; null: not tracked (opaque, empty, foreign device)
  Use use = Use::read;
  bool opaque = false;
  bool constant = false;   // the recorder says: a parameter
  bool shared = false;     // another argument has the same storage
  bool adopted = false;    // nothing was known of its storage before
  bool part = false;       // overwrites a part of its storage, and all of that
  bool begins = false;     // it is the first part: the old content is no input (R16)
  void* copy = nullptr;    // what it held before the op overwrites it (DTR_OP_KEEPS_OLD)
  uint32_t geometry = 0;   // first of its sizes and strides in OpCall::geometry
  dtr_tensor_desc desc{};  // as it was before the op ran
};

inline bool overwrites(Use use) {
  return use == Use::mutate || use == Use::write_only || use == Use::scratch;
}

// Whether the content before the op matters to it.
inline bool reads(Use use) { return use == Use::read || use == Use::mutate; }

// Whether the content after the op has nothing of the content before it.
inline bool is_whole(const Input& input) { return input.use == Use::write_only && !input.begins; }

struct OpCall {
  uint64_t op_key = 0;
  uint32_t place = 0;  // place_of_thread()
  Scratch<Input> inputs;
  // Storages that it reads and that are no arguments, such as a table of a Python function; locked.
  std::vector<Storage*> beside;
  // Sizes and strides of the inputs before the op ran: it may resize them (out=).
  Scratch<int64_t> geometry;
  bool open = false;
  bool runs = false;  // all that it needs was there, and it began
  bool recomputable = false;
  uint8_t constant_as = 0;    // DTR_KEPT_...: why it is not
  bool keeps_old = false;     // DTR_OP_KEEPS_OLD
  bool copies = false;        // DTR_OP_COPIES
  bool overwrites = false;    // some of its inputs
  bool reads_others = false;  // memory whose address others hold (contents.h)
  bool loses = false;         // some that it also reads, and that cannot be computed again
  int32_t made = 0;           // contents in new memory, so far
  bool inputs_wait = false;   // the locks of the inputs are waiting locks (R11)

  // Its results become constants.
  void cannot_be_repeated(uint8_t because) {
    if (recomputable) constant_as = because;
    recomputable = false;
  }
};

}  // namespace dtr
