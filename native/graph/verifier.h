// verifier.h: whether a rematerialization gives the bytes that were evicted. For finding the
// operator that does not: it costs a copy of the content, for which everybody waits.
//
// Every n-th eviction that gives a content up keeps a copy in host memory, beside every budget.
// When the storage is about to come back from its op, the bytes are compared. If they differ the
// step fails as if its closure had: the storage stays evicted, and its copy stays, too.
#pragma once

#include <cstdint>

#include "deferred.h"
#include "environment.h"
#include "records.h"
#include "stream_order.h"

namespace dtr {

class Verifier {
 public:
  Verifier(Environment& environment, const StreamOrder& streams)
      : environment_(environment), streams_(streams) {}

  // The content is about to be given up. Throws, and nothing has happened, without host memory.
  void keep_expected(Storage* storage);
  static void forget_expected(Storage* storage, Deferred& deferred) {
    if (!storage->expected) return;
    deferred.free_host(storage->expected);
    storage->expected = nullptr;
  }
  // The op gave these bytes for an evicted storage. Throws StateError if they are others.
  void compare(const Storage* storage, const Op* op, const void* address);

 private:
  Environment& environment_;
  const StreamOrder& streams_;
  uint64_t turn_ = 0;  // evictions since one's content was kept
};

}  // namespace dtr
