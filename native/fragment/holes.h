// holes.h: holes in address order, for first fit: buckets of neighbors that know their largest.
//
// The lowest hole of a size is found by the buckets' largest and then within one bucket. A bucket
// that grows beyond kMost is cut in two; an empty one goes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dtr::fragment {

class Holes {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  // Free from now on; joins the neighbors it touches.
  void add(uint64_t at, uint64_t size) {
    if (buckets_.empty()) buckets_.emplace_back();
    // The last bucket that begins at or before `at`, or the first one.
    size_t b = std::upper_bound(buckets_.begin(), buckets_.end(), at,
                                [](uint64_t value, const Bucket& bucket) {
                                  return !bucket.holes.empty() && value < bucket.holes[0].at;
                                }) -
               buckets_.begin();
    if (b > 0) --b;
    auto* holes = &buckets_[b].holes;
    size_t i = std::upper_bound(holes->begin(), holes->end(), at,
                                [](uint64_t value, const Hole& hole) { return value < hole.at; }) -
               holes->begin();
    // Joined with the hole behind, which may be the first of the next bucket.
    if (i < holes->size()) {
      if ((*holes)[i].at == at + size) {
        size += (*holes)[i].size;
        holes->erase(holes->begin() + static_cast<int64_t>(i));
      }
    } else if (b + 1 < buckets_.size() && buckets_[b + 1].holes[0].at == at + size) {
      size += buckets_[b + 1].holes[0].size;
      erase(b + 1, 0);
      holes = &buckets_[b].holes;
    }
    if (i > 0 && (*holes)[i - 1].at + (*holes)[i - 1].size == at) {
      (*holes)[i - 1].size += size;
    } else {
      holes->insert(holes->begin() + static_cast<int64_t>(i), {at, size});
    }
    if (holes->size() > kMost) {
      Bucket upper;
      upper.holes.assign(holes->begin() + kMost / 2, holes->end());
      upper.measure();
      holes->resize(kMost / 2);
      buckets_.insert(buckets_.begin() + static_cast<int64_t>(b) + 1, std::move(upper));
    }
    buckets_[b].measure();
  }

  // The low end of the lowest hole that is large enough, or kNone.
  uint64_t take_lowest(uint64_t size) {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      Bucket& bucket = buckets_[b];
      if (bucket.largest < size) continue;
      for (size_t i = 0;; ++i) {
        Hole& hole = bucket.holes[i];
        if (hole.size < size) continue;
        const uint64_t at = hole.at;
        const bool was_largest = hole.size == bucket.largest;
        hole.at += size;
        hole.size -= size;
        if (hole.size == 0) {
          erase(b, i);
        } else if (was_largest) {
          bucket.measure();
        }
        return at;
      }
    }
    return kNone;
  }

  template <typename F>
  void for_each(F&& visit) const {
    for (const Bucket& bucket : buckets_)
      for (const Hole& hole : bucket.holes) visit(hole.at, hole.size);
  }

 private:
  static constexpr size_t kMost = 128;
  struct Hole {
    uint64_t at, size;
  };
  struct Bucket {
    std::vector<Hole> holes;
    uint64_t largest = 0;
    void measure() {
      largest = 0;
      for (const Hole& hole : holes) largest = std::max(largest, hole.size);
    }
  };

  void erase(size_t b, size_t i) {
    Bucket& bucket = buckets_[b];
    bucket.holes.erase(bucket.holes.begin() + static_cast<int64_t>(i));
    if (bucket.holes.empty() && buckets_.size() > 1) {
      buckets_.erase(buckets_.begin() + static_cast<int64_t>(b));
    } else {
      bucket.measure();
    }
  }

  std::vector<Bucket> buckets_;
};

}  // namespace dtr::fragment
