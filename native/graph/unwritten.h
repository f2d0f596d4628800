// unwritten.h: what no operator has written yet of a buffer that is filled in parts.
//
// Parts are views: boxes of elements, in coordinates that the strides of the first part give. A
// part that is no box of them, or one part too many, ends the account: then it says nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtr/framework.h"
#include "op_call.h"
#include "require.h"

namespace dtr {

class Unwritten {
 public:
  static constexpr uint32_t kMostWrites = 64;

  // All of the buffer but this part. Like all that follows: false if it cannot be told.
  bool begin(const dtr_tensor_desc& part) {
    dims_ = 0;
    if (part.item_bytes == 0) return false;
    std::vector<int64_t> strides{part.item_bytes};
    for (int32_t d = 0; d < part.ndim; ++d)
      if (part.sizes[d] > 1) strides.push_back(part.strides[d] * part.item_bytes);
    std::ranges::sort(strides, std::greater<>());
    strides.erase(std::unique(strides.begin(), strides.end()), strides.end());
    if (strides.size() > kMostDims || strides.back() != part.item_bytes) return false;
    auto above = static_cast<int64_t>(part.storage_bytes);
    Box whole{};
    for (const int64_t stride : strides) {
      if (above % stride != 0) return false;
      strides_[dims_] = stride;
      extents_[dims_] = whole.end[dims_] = above / stride;
      ++dims_;
      above = stride;
    }
    boxes_.assign(1, whole);
    return write(part);
  }

  // An operator overwrote a part.
  bool write(const dtr_tensor_desc& part) {
    Box box;
    return box_of(part, &box) && subtract(box);
  }

  // An operator copied a part to another, element by element: what was not written of the one is
  // not written of the other either.
  bool copy(const dtr_tensor_desc& to, const dtr_tensor_desc& from) {
    if (to.ndim != from.ndim || !std::equal(to.sizes, to.sizes + to.ndim, from.sizes)) return false;
    for (int32_t d = 0; d < to.ndim; ++d)
      if (to.sizes[d] > 1 && to.strides[d] != from.strides[d]) return false;
    Box target, source;
    if (!box_of(to, &target) || !box_of(from, &source) || meet(target, source)) return false;
    for (size_t d = 0; d < dims_; ++d)
      if (target.end[d] - target.begin[d] != source.end[d] - source.begin[d]) return false;
    std::vector<Box> copied;
    for (Box box : boxes_) {
      if (!meet(box, source)) continue;
      for (size_t d = 0; d < dims_; ++d) {
        const int64_t by = target.begin[d] - source.begin[d];
        box.begin[d] = std::max(box.begin[d], source.begin[d]) + by;
        box.end[d] = std::min(box.end[d], source.end[d]) + by;
      }
      copied.push_back(box);
    }
    if (!subtract(target)) return false;
    boxes_.insert(boxes_.end(), copied.begin(), copied.end());
    return boxes_.size() <= kMostBoxes;
  }

  // Whether a part was written, all of it.
  bool has(const dtr_tensor_desc& part) const {
    Box box;
    return box_of(part, &box) &&
           std::ranges::none_of(boxes_, [&](const Box& other) { return meet(box, other); });
  }

  bool empty() const { return boxes_.empty(); }

 private:
  static constexpr size_t kMostDims = 8;
  static constexpr size_t kMostBoxes = 64;

  struct Box {
    std::array<int64_t, kMostDims> begin{}, end{};
  };

  bool meet(const Box& a, const Box& b) const {
    for (size_t d = 0; d < dims_; ++d)
      if (a.end[d] <= b.begin[d] || b.end[d] <= a.begin[d]) return false;
    return true;
  }

  struct Dimension {
    int64_t stride = 0;  // bytes
    int64_t size = 0;
  };

  // By descending strides; those that make one are one.
  static std::vector<Dimension> dimensions_of(const dtr_tensor_desc& part) {
    std::vector<Dimension> all, merged;
    for (int32_t i = 0; i < part.ndim; ++i)
      if (part.sizes[i] != 1) all.push_back({part.strides[i] * part.item_bytes, part.sizes[i]});
    std::ranges::sort(all, std::ranges::greater(), &Dimension::stride);
    for (const Dimension& next : all)
      if (!merged.empty() && merged.back().stride == next.stride * next.size)
        merged.back() = {next.stride, merged.back().size * next.size};
      else
        merged.push_back(next);
    return merged;
  }

  bool box_of(const dtr_tensor_desc& part, Box* box) const {
    if (part.item_bytes != strides_[dims_ - 1]) return false;
    int64_t rest = part.offset * part.item_bytes;
    for (size_t d = 0; d < dims_; ++d) {
      box->begin[d] = rest / strides_[d];
      box->end[d] = box->begin[d] + 1;
      rest %= strides_[d];
      if (box->end[d] > extents_[d]) return false;
    }
    std::array<bool, kMostDims> taken{};
    for (const Dimension& dimension : dimensions_of(part)) {
      int64_t count = dimension.size;
      const int64_t* last = strides_.data() + dims_;
      const int64_t* found = std::find(strides_.data(), last, dimension.stride);
      if (count == 0 || found == last) return false;
      auto d = static_cast<size_t>(found - strides_.data());
      // One dimension may run over several whole ones.
      while (!taken[d] && d > 0 && count > extents_[d]) {
        if (box->begin[d] != 0 || count % extents_[d] != 0) return false;
        taken[d] = true;
        box->end[d] = extents_[d];
        count /= extents_[d--];
      }
      if (taken[d] || box->begin[d] + count > extents_[d]) return false;
      taken[d] = true;
      box->end[d] = box->begin[d] + count;
    }
    return true;
  }

  bool subtract(const Box& box) {
    if (++writes_ > kMostWrites) return false;
    std::vector<Box> left;
    for (Box whole : boxes_) {
      if (!meet(whole, box)) {
        left.push_back(whole);
        continue;
      }
      // Slice by slice, what lies before and behind.
      for (size_t d = 0; d < dims_; ++d) {
        if (whole.begin[d] < box.begin[d]) {
          left.push_back(whole);
          left.back().end[d] = whole.begin[d] = box.begin[d];
        }
        if (box.end[d] < whole.end[d]) {
          left.push_back(whole);
          left.back().begin[d] = whole.end[d] = box.end[d];
        }
      }
    }
    boxes_ = std::move(left);
    return boxes_.size() <= kMostBoxes;
  }

  size_t dims_ = 0;
  uint32_t writes_ = 0;
  std::array<int64_t, kMostDims> strides_{};  // bytes, descending
  std::array<int64_t, kMostDims> extents_{};
  std::vector<Box> boxes_;  // disjoint
};

// The accounts of the contents that are unwritten (R16).
class UnwrittenParts {
 public:
  // Whether the op may read what was not written of a content.
  bool reads(const OpCall& op, const Input& input, const Storage* storage) const {
    if (input.use == Use::write_only) return false;
    // An op that copies one part to another: write() sees to it.
    if (op.copies && &input == &op.inputs[1] && op.inputs[0].storage == storage) return false;
    return input.use == Use::scratch || !of_.at(storage).has(input.desc);
  }

  // What is not written of the version that begins as the op has overwritten a part of one that
  // ends; false: it cannot be told.
  bool write(const OpCall& op, const Input& input, Unwritten* left) const {
    if (input.begins) return left->begin(input.desc);
    *left = of_.at(input.storage);
    if (op.copies && input.shared) return input.part && left->copy(input.desc, op.inputs[1].desc);
    return !input.part || left->write(input.desc);
  }

  void begin(Storage* storage, Unwritten left) {
    storage->unwritten = true;
    of_.emplace(storage, std::move(left));
  }
  // Ends the account: all is written, or the rest is nobody's any more.
  void forget(Storage* storage) {
    if (!storage->unwritten) return;
    storage->unwritten = false;
    of_.erase(storage);
  }

  // R16.
  void check(const std::vector<Storage*>& storages) const {
    uint64_t unwritten = 0;
    for (const Storage* storage : storages) {
      require(storage->unwritten == (of_.count(storage) > 0), "R16: its account is elsewhere",
              storage);
      if (!storage->unwritten) continue;
      ++unwritten;
      require(
          storage->state == State::resident && storage->live && storage->managed && storage->parent,
          "R16: an unwritten content is no version of a live storage", storage);
    }
    if (unwritten != of_.size())
      throw StateError("R16: there are " + std::to_string(of_.size()) + " accounts of " +
                       std::to_string(unwritten) + " unwritten storages");
  }

 private:
  std::unordered_map<const Storage*, Unwritten> of_;
};

}  // namespace dtr
