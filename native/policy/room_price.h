// room_price.h: what it takes to make room, beside the compute that is repeated: prices, so that two
// runs decide alike. A job's engine and what-if plays of its steps have them from here.
#pragma once

#include <cstdint>

#include "graph/records.h"

namespace dtr {

struct RoomPrice {
  double map_ns = 0;      // for each chunk that is mapped, the kernel or the driver
  double remap_ns = 0;    // and each time that chunks are taken from elsewhere
  double search_ns = 0;   // the choice of what to evict; a plan has none
  int64_t replay_ns = 0;  // the host, for each op that runs again; scores add it to the op's cost

  static RoomPrice of(uint8_t device_type, uint64_t chunk_bytes) {
    // Mapping a page of the host takes 1.4 to 2.4 us of its kernel's time
    // (bench/results/mapping_cpu.json), and showing a chunk of a GPU elsewhere 34 to 57 us, be it of
    // 2 MiB or of 128, one by one or many at once (cuMemMap, cuMemSetAccess and cuMemUnmap in
    // bench/results/gpu_mapping.json).
    constexpr double kMapPageNs = 2000;
    constexpr double kMapChunkNs = 40e3;
    // About what a step of U-Net takes longer for each (bench.sweep learning).
    constexpr double kRemapNs = 50e3;
    // Searches of jobs of bench.models took 4 to 15 us each, at 0.5 to 0.2 of their activation memory;
    // those of bench.foreign 3 to 36, so a job that measures has a price of its own (SearchSample).
    constexpr double kSearchNs = 5000;
    // The host holds back a device's step of many small ops. A replay of GPT-2 medium takes it 50 to
    // 100 us (bench.null_cuda).
    constexpr int64_t kReplayNs = 100'000;
    // A simulated pool is the host's, whatever the log comes from. Its chunks tell.
    constexpr uint64_t kMostPage = 1 << 16;
    const bool is_page = device_type == kCpu && chunk_bytes <= kMostPage;
    return {is_page ? kMapPageNs : kMapChunkNs, kRemapNs, kSearchNs,
            device_type == kCpu ? 0 : kReplayNs};
  }
};

}  // namespace dtr
