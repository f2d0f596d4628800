// spans.h: the bytes of a storage between the first and the last that a tensor may touch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ranges.h"
#include "dtr/framework.h"
#include "records.h"

namespace dtr {

constexpr Range kWholeStorage{0, UINT64_MAX};

inline bool meet(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }

// Of the elements at these places; all bytes where that cannot be told.
inline Range span_of(const int64_t* sizes, const int64_t* strides, int32_t ndim, int64_t offset,
                     uint8_t item_bytes, uint64_t storage_bytes) {
  const Range all{0, storage_bytes};
  if (item_bytes == 0) return all;
  auto first = static_cast<uint64_t>(offset), last = first;
  for (int32_t d = 0; d < ndim; ++d) {
    if (sizes[d] == 0) return {0, 0};
    last += static_cast<uint64_t>((sizes[d] - 1) * strides[d]);
  }
  const Range span{first * item_bytes, (last + 1) * item_bytes};
  return span.begin < span.end && span.end <= all.end ? span : all;
}

inline Range span_of(const dtr_tensor_desc& desc) {
  if (desc.flags & DTR_TENSOR_OPAQUE) return {0, desc.storage_bytes};
  return span_of(desc.sizes, desc.strides, desc.ndim, desc.offset, desc.item_bytes,
                 desc.storage_bytes);
}

// Whether the edge's op reads the input beside its arguments (OpCall::beside).
inline bool is_beside(const Edge& edge) {
  const auto index = static_cast<int32_t>(edge.op->index_of(&edge));
  return std::ranges::none_of(edge.op->tensors,
                              [index](const TensorSpec& spec) { return spec.edge == index; });
}

// Of all that the edge's op reads there.
inline Range span_of(const Edge& edge) {
  if (is_beside(edge)) return {0, edge.input->size_bytes};
  Op* op = edge.op;
  const auto index = static_cast<int32_t>(op->index_of(&edge));
  Range all{0, 0};
  for (const TensorSpec& spec : op->tensors) {
    if (spec.edge != index) continue;
    const int64_t* sizes = op->geometry.data() + spec.geometry;
    const Range span = span_of(sizes, sizes + spec.ndim, spec.ndim, spec.offset, spec.item_bytes,
                               edge.input->size_bytes);
    if (span.begin == span.end) continue;
    all = all.begin == all.end
              ? span
              : Range{std::min(all.begin, span.begin), std::max(all.end, span.end)};
  }
  return all;
}

}  // namespace dtr
