#include "stream_order.h"

#include "base/error.h"

namespace dtr {

// (While a graph is captured no stream may wait for what is outside; nothing has to, see F1.)
void StreamOrder::before_use(Storage* storage, bool overwrites) const {
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

void StreamOrder::before_use(const OpCall& call) const {
  if (!environment_.framework->current_stream) return;
  for (const Input& input : call.inputs)
    if (input.storage) before_use(input.storage, overwrites(input.use));
}

}  // namespace dtr
