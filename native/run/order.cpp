// order.cpp: what a device must do first where several of its streams use one storage.
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
//      not this one. A replay itself needs no more than that: whoever may use a result was
//      ordered behind its first making, and so behind the making of what it was made from.
//
// The pool is called under the mutex, unlike elsewhere: another thread that queues work on
// the same stream must not see that it is ordered before it is. That is rare: with one
// stream a device calls for each storage once, and waits for nothing.
#include "base/error.h"
#include "engine.h"

namespace dtr {

// Work that this thread queues next reads or overwrites the storage. (While a graph is
// captured no stream may wait for what is outside; nothing has to, see F1.)
void Engine::order_use(Storage* storage) {
  if (!storage->managed || !storage->address || capture_.is_under_way()) return;
  const uint64_t stream = stream_of(storage->device_type, storage->device_index);
  if (stream == kNoStream) return;
  if (storage->used_on != stream) {
    check_status(dtr_pool_record_stream(device_of(storage).pool, storage->address, stream));
    storage->used_on = stream;
  }
  if (storage->remade_on == kNoStream || storage->remade_on == stream ||
      storage->ordered_on == stream)
    return;
  check_status(dtr_pool_order(device_of(storage).pool, stream, storage->remade_on));
  storage->ordered_on = stream;
}

void Engine::order_inputs(const Frame& frame) {
  if (!framework_->current_stream) return;
  for (const Input& input : frame.inputs)
    if (input.storage) order_use(input.storage);
}

}  // namespace dtr
