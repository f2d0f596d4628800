// stream_order.h: what a device must do first where several of its streams use one storage.
//
// A job orders its streams for what it knows of: it has stream B wait for stream A before
// work on B reads what A made. It knows nothing of evictions and rematerializations, which
// come at moments that it did not choose:
//
//  O1  Before work on a stream is queued, the pool knows that this stream uses the blocks
//      of its inputs. So an evicted block is not given to work that could overtake it, also
//      where the job holds the tensor and need not call Tensor.record_stream.
//  O2  A content that was rematerialized on stream R is used on another stream only behind
//      all work of R so far: the job ordered that stream behind the first making, which is
//      not this one. A recomputation itself needs no more than that: a stream that may use a
//      result was ordered behind its first making, and so behind the making of its inputs.
//  O3  An op that overwrites a content comes behind all work that uses it. The job ordered the op
//      behind the readers that it knows of; recomputations are readers that it does not know, on
//      whatever stream needed their results.
//
// The pool is called under the mutex, unlike elsewhere: another thread that queues work on
// the same stream must not see that it is ordered before it is. That is rare: with one
// stream a device calls for each storage once, and waits for nothing.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "environment.h"
#include "graph_capture.h"
#include "op_call.h"
#include "records.h"

namespace dtr {

class StreamOrder {
 public:
  StreamOrder(const Environment& environment, const GraphCapture& capture)
      : environment_(environment), capture_(capture) {}

  // Whether a device of this type queues its work.
  bool has_streams(uint8_t device_type) const {
    return device_type != 0 && environment_.framework->current_stream;
  }
  // Where this thread queues work; kNoStream where nothing is queued.
  uint64_t current(uint8_t device_type, int8_t device_index) const {
    return has_streams(device_type)
               ? environment_.framework->current_stream(device_type, device_index)
               : kNoStream;
  }
  uint64_t current(const Storage* storage) const {
    return current(storage->device_type, storage->device_index);
  }

  // Where this thread queues a copy of the content; 0 where nothing is queued.
  uint64_t for_copy(const Storage* storage) const {
    const uint64_t stream = current(storage);
    return stream == kNoStream ? 0 : stream;
  }
  // Behind which a copy of a resident content comes; this thread's if no use is known.
  uint64_t of_last_use(const Storage* storage) const {
    return storage->used_on == kNoStream ? for_copy(storage) : storage->used_on;
  }

  // Work that this thread queues next reads the storage, or overwrites it.
  // (While a graph is captured no stream may wait for what is outside; nothing has to, see F1.)
  void before_use(Storage* storage, bool overwrites) const {
    if (!storage->managed || !storage->address || capture_.is_under_way()) return;
    const uint64_t stream = current(storage);
    if (stream == kNoStream) return;
    dtr_pool* pool = environment_.pool_of(storage->device_type, storage->device_index);
    if (storage->used_on != stream) {
      check_status(dtr_pool_record_stream(pool, storage->address, stream));
      storage->on_streams |= storage->used_on != kNoStream;
      storage->used_on = stream;
    }
    if (overwrites && storage->on_streams)
      check_status(dtr_pool_order_uses(pool, storage->address, stream));
    if (storage->remade_on == kNoStream || storage->remade_on == stream ||
        storage->ordered_on == stream)
      return;
    check_status(dtr_pool_order(pool, stream, storage->remade_on));
    storage->ordered_on = stream;
  }
  void before_use(const OpCall& call) const {
    if (!environment_.framework->current_stream) return;
    for (const Input& input : call.inputs)
      if (input.storage) before_use(input.storage, overwrites(input.use));
  }
  // The content was rematerialized by this thread.
  void remade(Storage* storage) const {
    storage->used_on = storage->remade_on = current(storage);
    storage->ordered_on = kNoStream;
  }

 private:
  const Environment& environment_;
  const GraphCapture& capture_;
};

}  // namespace dtr
