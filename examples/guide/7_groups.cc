// SPDX-License-Identifier: Apache-2.0
//
// Part 7 of the guide: collectives on memory of the program.
//
//   bazel run //examples/guide:7_groups
#include <iostream>
#include <vector>

#include "absl/time/time.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

// 1. The function of each of four processes. `sums` is copied, and may be any vector, array or
//    span. With one argument the result takes the place of the input.
Status collectives(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group());
  std::vector<float> sums = {static_cast<float>(client.client_id()), 1};
  TESSERA_RETURN_IF_ERROR(group.all_reduce(sums, ReduceOp::kSum).await());
  if (group.position() == 0) std::cout << "sums: " << sums[0] << " " << sums[1] << std::endl;

  // 2. Memory of an arena, which the other processes of the host read directly.
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> one, client.allocate<float>(0, 1));
  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> all, client.allocate<float>(0, 4));
  one[0] = static_cast<float>(group.position() * group.position());
  TESSERA_RETURN_IF_ERROR(group.all_gather(one, all).await());
  if (group.position() == 0) std::cout << "squares: " << all[2] << " " << all[3] << std::endl;

  // 3. Two operations that were started, and one wait for both.
  std::vector<float> least = {one[0]}, most = {one[0]};
  const std::vector<Work> works = {group.all_reduce(least, ReduceOp::kMin),
                                   group.all_reduce(most, ReduceOp::kMax)};
  TESSERA_RETURN_IF_ERROR(await_all(works));
  if (group.position() == 0) std::cout << "from " << least[0] << " to " << most[0] << std::endl;

  // 4. A deadline: where a member is missing, all others get an error that names it.
  return group.barrier().wait(absl::Seconds(30));
}

}  // namespace

// 5. Four processes run the function. The first error of any of them is the result.
int main() {
  const Status status = spawn(4, collectives);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
