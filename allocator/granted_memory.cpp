#include "granted_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace dtr {

namespace {

constexpr uint64_t kNone = UINT64_MAX;

// A hierarchy of control groups that may limit memory.
struct Hierarchy {
  std::string mounted;  // where its files are
  std::string top;      // which group is there
  bool version_2;
};

// Of version 1, that of the memory controller.
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // id parent device top mounted options... - type source options
    std::istringstream words(line);
    std::string word, top, mounted, type, options;
    words >> word >> word >> word >> top >> mounted;
    while (words >> word && word != "-") {
    }
    words >> type >> word >> options;
    const bool version_2 = type == "cgroup2";
    const bool of_memory =
        type == "cgroup" && ("," + options + ",").find(",memory,") != std::string::npos;
    if (version_2 || of_memory) found.push_back({root + mounted, top, version_2});
  }
  return found;
}

// The process's group in it; "" if that is not known.
std::string group_in(const Hierarchy& hierarchy, const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // number:controllers:group
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted = hierarchy.version_2 ? controllers == ",,"
                                            : controllers.find(",memory,") != controllers.npos;
    if (wanted) return line.substr(second + 1);
  }
  return "";
}

// "max" is no number.
uint64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes ? bytes : kNone;
}

uint64_t limit_of(const Hierarchy& hierarchy, const std::string& root) {
  std::string group = group_in(hierarchy, root);
  // Below the group that is mounted. In a container the rest of the path is often not to be seen.
  if (hierarchy.top != "/") {
    const bool below = group.compare(0, hierarchy.top.size(), hierarchy.top) == 0;
    group = below ? group.substr(hierarchy.top.size()) : "";
  }
  if (group.find("/..") != std::string::npos) group = "";  // outside of what is to be seen
  while (!group.empty() && group.back() == '/') group.pop_back();
  const char* name = hierarchy.version_2 ? "/memory.max" : "/memory.limit_in_bytes";
  uint64_t least = kNone;
  for (;;) {
    least = std::min(least, limit_in(hierarchy.mounted + group + name));
    if (group.empty()) return least;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

uint64_t own_limit(int resource) {
  rlimit limit{};
  const bool has = ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return has ? limit.rlim_cur : kNone;
}

}  // namespace

uint64_t granted_memory(const std::string& root) {
  uint64_t least = std::min(own_limit(RLIMIT_AS), own_limit(RLIMIT_DATA));
  for (const Hierarchy& hierarchy : hierarchies(root))
    least = std::min(least, limit_of(hierarchy, root));
  return least;
}

}  // namespace dtr
