// What the calls cost that chunks of memory take to come and go, for benchmarks.
#pragma once

#include <cstdint>

namespace dtr {

// Medians over the rounds, of all chunks together, by the host's clock.
struct CudaMapTimes {
  int64_t create_ns;   // cuMemCreate, for each chunk
  int64_t map_ns;      // cuMemMap, for each
  int64_t access_ns;   // cuMemSetAccess, once
  int64_t unmap_ns;    // cuMemUnmap, once
  int64_t release_ns;  // cuMemRelease, for each
};

// Maps and unmaps so many chunks of its own side by side, outside of every pool. Throws
// InvalidArgument for a size that the device cannot map, no chunks or no rounds, and DriverError.
CudaMapTimes cuda_map_times(int32_t device, uint64_t chunk_bytes, uint64_t chunks, uint64_t rounds);

}  // namespace dtr
