// host_memory.h: the host memory that swapped contents lie in, up to a cap.
//
// Pinned memory is slow to get and slow to give back, so buffers are kept for the next content of
// the same size: in a training step the sizes repeat. The cap counts those in use and those kept.
//
// The engine's mutex guards it. Nothing here calls a driver: who takes a buffer gets memory for it
// (and gives back what had to make place) when the mutex is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtr_alloc.h"
#include "grain.h"
#include "graph/host_copy.h"

namespace dtr {

class HostMemory {
 public:
  void set_cap(uint64_t bytes) { cap_bytes_ = bytes; }
  uint64_t cap_bytes() const { return cap_bytes_; }
  uint64_t in_use_bytes() const { return in_use_bytes_; }
  bool has_room(uint64_t size_bytes) const {
    const uint64_t bytes = round_up(size_bytes, kPage);
    return bytes <= cap_bytes_ && in_use_bytes_ <= cap_bytes_ - bytes;
  }

  // A buffer for a content, if has_room() says so. *surplus gets kept ones that must be given
  // back first.
  HostCopy* take(dtr_pool* pool, uint64_t size_bytes, std::vector<HostCopy*>* surplus) {
    const uint64_t bytes = round_up(size_bytes, kPage);
    in_use_bytes_ += bytes;
    // The newest first: its pages are the likeliest to be in the caches.
    for (size_t i = kept_.size(); i-- > 0;) {
      HostCopy* copy = kept_[i];
      if (copy->pool != pool || copy->bytes != bytes) continue;
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= bytes;
      return copy;
    }
    shrink(surplus);
    auto* copy = new HostCopy();
    copy->pool = pool;
    copy->bytes = bytes;
    return copy;
  }

  // Keeps a buffer for others, behind the copies that are still under way on its stream.
  void put(HostCopy* copy) {
    in_use_bytes_ -= copy->bytes;
    if (!copy->buffer) {
      delete copy;
      return;
    }
    kept_bytes_ += copy->bytes;
    kept_.push_back(copy);
  }

  // *surplus gets the kept buffers that are more than the cap allows, the oldest first.
  void shrink(std::vector<HostCopy*>* surplus) {
    size_t count = 0;
    while (count < kept_.size() && in_use_bytes_ + kept_bytes_ > cap_bytes_) {
      kept_bytes_ -= kept_[count]->bytes;
      surplus->push_back(kept_[count++]);
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // *surplus gets all that are kept.
  void empty(std::vector<HostCopy*>* surplus) {
    surplus->insert(surplus->end(), kept_.begin(), kept_.end());
    kept_.clear();
    kept_bytes_ = 0;
  }

 private:
  static constexpr uint64_t kPage = 4096;

  uint64_t cap_bytes_ = 0;
  uint64_t in_use_bytes_ = 0;
  uint64_t kept_bytes_ = 0;
  std::vector<HostCopy*> kept_;
};

}  // namespace dtr
