#include "block_table.h"

#include <utility>

namespace dtr {

void BlockTable::grow() {
  std::vector<Bucket> before(2 * buckets_.size());
  std::swap(before, buckets_);
  --home_shift_;
  most_ *= 2;
  last_ = {};
  for (const Bucket& bucket : before)
    for (uint32_t used = bucket.words[kSlots] & kFull; used != 0; used &= used - 1)
      put(nodes_.at(bucket.words[__builtin_ctz(used)] >> kTagBits));
}

}  // namespace dtr
