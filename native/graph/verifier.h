// verifier.h: whether a rematerialization gives the bytes that were evicted. For finding the
// operator that does not: it costs a copy of the content, for which everybody waits.
//
// Every n-th eviction that gives a content up keeps a copy in host memory, beside every budget.
// When the storage is about to come back from its op, the bytes are compared. If they differ the
// step fails as if its closure had: the storage stays evicted, and its copy stays, too.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "deferred.h"
#include "environment.h"
#include "host_copy.h"
#include "records.h"
#include "stream_order.h"

namespace dtr {

class Verifier {
 public:
  Verifier(Environment& environment, const StreamOrder& streams)
      : environment_(environment), streams_(streams) {}

  // The content is about to be given up. Throws, and nothing has happened, without host memory.
  void keep_expected(Storage* storage) {
    const uint64_t every = environment_.options.verify;
    if (every == 0 || !storage->parent || ++turn_ < every) return;
    storage->expected = read(environment_.pool_of(storage->device_type, storage->device_index),
                             storage->address, storage->size_bytes, streams_.of_last_use(storage))
                            .release();
    turn_ = 0;
  }
  static void forget_expected(Storage* storage, Deferred& deferred) {
    if (!storage->expected) return;
    deferred.free_host(storage->expected);
    storage->expected = nullptr;
  }
  // The op gave these bytes for an evicted storage. Throws StateError if they are others.
  void compare(const Storage* storage, const Op* op, const void* address) {
    if (!storage->expected) return;
    const uint64_t bytes = storage->size_bytes;
    const auto copy = read(environment_.pool_of(storage->device_type, storage->device_index),
                           address, bytes, streams_.for_copy(storage));
    const auto* was = static_cast<const unsigned char*>(storage->expected->buffer);
    const auto* is = static_cast<const unsigned char*>(copy->buffer);
    ++environment_.stats.verified;
    if (std::memcmp(was, is, bytes) == 0) return;
    uint64_t different = 0, first = 0;
    for (uint64_t i = bytes; i-- > 0;)
      if (was[i] != is[i]) {
        ++different;
        first = i;
      }
    throw StateError("verify: op " + std::to_string(op->id) + " ran again and gave " +
                     std::to_string(different) + " of the " + std::to_string(bytes) +
                     " bytes of storage " + std::to_string(storage->id) +
                     " differently, the first at offset " + std::to_string(first));
  }

 private:
  static void check(int32_t status) {
    if (status != DTR_OK) throw_status(status, std::string("verify: ") + dtr_last_error());
  }

  // The bytes at an address, in host memory, once the work of the stream is done.
  static std::unique_ptr<HostCopy, void (*)(HostCopy*)> read(dtr_pool* pool, const void* address,
                                                             uint64_t bytes, uint64_t stream) {
    std::unique_ptr<HostCopy, void (*)(HostCopy*)> copy(new HostCopy(), give_back);
    copy->pool = pool;
    copy->bytes = bytes;
    copy->stream = stream;
    check(dtr_pool_host_allocate(pool, bytes, &copy->buffer));
    check(dtr_pool_copy_out(pool, copy->buffer, address, bytes, stream));
    check(dtr_pool_synchronize(pool, stream));
    return copy;
  }

  Environment& environment_;
  const StreamOrder& streams_;
  uint64_t turn_ = 0;  // evictions since one's content was kept
};

}  // namespace dtr
