// SPDX-License-Identifier: Apache-2.0
//
// tessera_ckpt: looks into checkpoints and files of tensors, checks and converts them;
// `tessera_ckpt --help` has the commands, commands.h does the work.
#include <iostream>
#include <string>
#include <vector>

#include "tools/ckpt_tool/commands.h"

int main(int argc, char** argv) {
  const std::vector<std::string> texts(argv + (argc > 0 ? 1 : 0), argv + argc);
  return tessera::ckpt_tool::run_ckpt(texts, std::cin, std::cout, std::cerr);
}
