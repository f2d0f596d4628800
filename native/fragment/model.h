// model.h: what a run asks of an allocator, and what all models have in common.
//
// A model manages addresses without memory. It answers for one device, deterministically: the
// same calls give the same places. `reserved` is what it holds of the device, `used` what its
// blocks take of that (rounded as it rounds); a hole is a stretch of reserved memory that is not
// used and could be given to one request, where requests need contiguity.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtr_alloc.h"
#include "events.h"

namespace dtr::fragment {

constexpr uint64_t kNoPlace = UINT64_MAX;
constexpr uint64_t kUnlimited = UINT64_MAX;

class Model {
 public:
  virtual ~Model() = default;

  // The address, or kNoPlace: out of memory. size is not 0, id is new.
  virtual uint64_t allocate(uint32_t id, uint64_t size, uint64_t stream) = 0;
  virtual void free(uint32_t id) = 0;

  virtual uint64_t reserved_bytes() const = 0;
  virtual uint64_t used_bytes() const = 0;
  // Blocks in use and holes, in address order; stream is that of the owner.
  virtual std::vector<dtr_fragment_block> blocks() = 0;
  // False if what it gives are no addresses of contiguous memory.
  virtual bool has_places() const { return true; }

  // What it took from the device and gave back, in order; row is what the run sets.
  const std::vector<dtr_fragment_segment>& segments() const { return segments_; }
  uint64_t row = 0;

 protected:
  void note_segment(uint64_t address, uint64_t size, bool taken) {
    segments_.push_back({row, address, size, taken ? 1 : 0, 0});
  }

 private:
  std::vector<dtr_fragment_segment> segments_;
};

// Throws InvalidArgument for options that are none. `count`: ids are below it. `needed_bytes`: the
// most that will be in use at once.
std::unique_ptr<Model> make_model(const dtr_fragment_options& options, uint32_t count,
                                  uint64_t needed_bytes);

// The large kinds.
std::unique_ptr<Model> make_ours(const dtr_fragment_options& options, uint32_t count,
                                 uint64_t needed_bytes);
std::unique_ptr<Model> make_caching(const dtr_fragment_options& options, uint32_t count);

}  // namespace dtr::fragment
