// run_model.h: one trace through one model, and what is measured on the way.
//
// Two passes over the same events give the same places. The first is timed; it finds where the
// peaks are. The second looks at all free blocks at samples and at those peaks, and is not timed.
#pragma once

#include <cstdint>
#include <vector>

#include "dtr_alloc.h"
#include "events.h"
#include "model.h"

namespace dtr::fragment {

// Behind the opaque dtr_fragment_run.
struct ModelRun {
  dtr_fragment_result result{};                // without the arrays
  std::vector<dtr_fragment_sample> samples;    // by row
  std::vector<uint64_t> places;                // by allocation, if asked for
  std::vector<dtr_fragment_block> worst;       // when reserved - live was largest
  std::vector<dtr_fragment_block> last;        // when it ended
  std::vector<dtr_fragment_segment> segments;  // taken from the device and given back

  dtr_fragment_result whole() const;
};

// Throws InvalidArgument for options that are none.
void run_model(const Events& events, const dtr_fragment_options& options, ModelRun& outcome);

}  // namespace dtr::fragment
