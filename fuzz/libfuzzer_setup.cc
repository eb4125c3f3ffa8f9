// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer writes new inputs into its first folder. Under Bazel this is the test's own folder, not
// the corpus, which is an input of the test. So equal runs find equal inputs.
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  if (folder == nullptr) return 0;
  const char* const outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  // The texts live as long as the program.
  static auto& texts = *new std::vector<std::string>{
      folder, "-artifact_prefix=" + std::string(outputs == nullptr ? folder : outputs) + "/"};
  static auto& arguments = *new std::vector<char*>(*argv, *argv + *argc);
  arguments.insert(arguments.begin() + 1, {texts[0].data(), texts[1].data()});
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}
