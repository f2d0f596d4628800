// What the calls cost that a chunk of memory takes to come and go, for benchmarks.
#pragma once

#include <cstdint>

namespace dtr {

// Medians over the rounds, of one chunk, by the host's clock.
struct CudaMapTimes {
  int64_t create_ns;   // cuMemCreate
  int64_t map_ns;      // cuMemMap
  int64_t access_ns;   // cuMemSetAccess
  int64_t unmap_ns;    // cuMemUnmap
  int64_t release_ns;  // cuMemRelease
};

// Maps and unmaps a chunk of its own, outside of every pool. Throws InvalidArgument for a size
// that the device cannot map or no rounds, and DriverError.
CudaMapTimes cuda_map_times(int32_t device, uint64_t chunk_bytes, uint64_t rounds);

}  // namespace dtr
