// least_of.cpp: the least of a group, sixteen numbers at once.
#include "least_of.h"

namespace dtr {

namespace {

constexpr size_t kGroup = LeastOf::kGroup;

[[gnu::always_inline]] inline size_t least_in(const float* first) {
  Lanes low, high;
  load(first, low);
  load(first + kLanes, high);
  const float least = least_lane(low < high ? low : high);
  const Lanes lanes = {0, 1, 2, 3, 4, 5, 6, 7}, none = lanes * 0 + kGroup;
  high = high == least ? lanes + kLanes : none;
  low = low == least ? lanes : high;
  return static_cast<size_t>(least_lane(low));
}

[[gnu::always_inline]] inline size_t least_index(const float* numbers, const float* groups,
                                                 size_t count) {
  size_t least = 0;
  for (size_t at = 0; at < count; at += kGroup) {
    const size_t found = at + least_in(groups + at);
    if (groups[found] < groups[least]) least = found;
  }
  return least * kGroup + least_in(numbers + least * kGroup);
}

#ifdef DTR_FOR_AVX2
DTR_FOR_AVX2 size_t least_in_with_avx2(const float* first) { return least_in(first); }
DTR_FOR_AVX2 size_t least_index_with_avx2(const float* numbers, const float* groups, size_t count) {
  return least_index(numbers, groups, count);
}
#endif

size_t least_of_group(const float* first) {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return least_in_with_avx2(first);
#endif
  return least_in(first);
}

}  // namespace

void LeastOf::update() {
  for (size_t group = 0; group * kGroup < numbers_.size(); ++group) {
    const float* const first = &numbers_[group * kGroup];
    groups_[group] = first[least_of_group(first)];
  }
}

void LeastOf::set(size_t index, float value) {
  numbers_[index] = value;
  const float* const first = &numbers_[index / kGroup * kGroup];
  groups_[index / kGroup] = first[least_of_group(first)];
}

size_t LeastOf::index() const {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return least_index_with_avx2(numbers_.data(), groups_.data(), groups_.size());
#endif
  return least_index(numbers_.data(), groups_.data(), groups_.size());
}

}  // namespace dtr
