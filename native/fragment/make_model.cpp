// Which model options ask for, and what they may ask.
#include <string>

#include "errors.h"
#include "model.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kLeastMaxSplit = 20 << 20;  // as PyTorch allows

void check_caching(const dtr_fragment_options& options) {
  const auto fail = [](const std::string& what) { throw InvalidArgument(what); };
  const auto flag = [&](const char* name, int32_t value) {
    if (value < 0 || value > 1) fail(name + (" is " + std::to_string(value)) + "; allowed: 0, 1");
  };
  flag("expandable", options.expandable);
  flag("budget_is_fraction", options.budget_is_fraction);
  flag("ties_by_address", options.ties_by_address);
  if (options.max_split_bytes != 0 && options.max_split_bytes < kLeastMaxSplit)
    fail("max_split_bytes is " + std::to_string(options.max_split_bytes) +
         "; allowed: 20 MiB or more, or 0 for no limit");
  const uint64_t divisions = options.roundup_power2_divisions;
  if ((divisions & (divisions - 1)) != 0)
    fail("roundup_power2_divisions is " + std::to_string(divisions) +
         "; allowed: powers of two, or 0 for none");
  if (!(options.collect_threshold >= 0 && options.collect_threshold < 1))
    fail("collect_threshold is " + std::to_string(options.collect_threshold) +
         "; allowed: from 0 (never) to below 1");
}

}  // namespace

std::unique_ptr<Model> make_model(const dtr_fragment_options& options, uint32_t count,
                                  uint64_t needed_bytes) {
  switch (options.model) {
    case DTR_FRAGMENT_OURS:
      return make_ours(options, count, needed_bytes);
    case DTR_FRAGMENT_PYTORCH:
      check_caching(options);
      return make_caching(options, count);
    case DTR_FRAGMENT_POWER_OF_TWO:
      return make_bins(options.budget_bytes);
    case DTR_FRAGMENT_FIRST_FIT:
      return make_first_fit(options.budget_bytes);
    case DTR_FRAGMENT_PAGING:
      if (options.page_bytes == 0) throw InvalidArgument("page_bytes is 0; allowed: 1 or more");
      return make_paging(options.budget_bytes, options.page_bytes, count);
    case DTR_FRAGMENT_EXACT:
      return make_exact(options.budget_bytes, count);
    default:
      throw InvalidArgument("model is " + std::to_string(options.model) + "; allowed: 0 to 5");
  }
}

}  // namespace dtr::fragment
