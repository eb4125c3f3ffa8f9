// SPDX-License-Identifier: Apache-2.0
//
// A shared library of the program, which uses protobuf with descriptors.
#ifndef TESSERA_TESTS_INSTALL_PROTOBUF_MESSAGES_H_
#define TESSERA_TESTS_INSTALL_PROTOBUF_MESSAGES_H_

#include <string>

// A message as bytes, and the bytes as text by reflection.
std::string encode(const std::string& name, int number);
std::string describe(const std::string& bytes);

#endif  // TESSERA_TESTS_INSTALL_PROTOBUF_MESSAGES_H_
